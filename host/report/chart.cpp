#include "host/report/chart.h"

#include <algorithm>
#include <set>

#include "host/report/text.h"

namespace atelier::report {
namespace {

constexpr double kLeft = 80, kRight = 20, kTop = 40, kBottom = 50;
constexpr double kLegendRow = 18, kLetter = 6.6;
constexpr int kTicks = 4;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

struct LegendEntry {
  std::string name, color;
  bool is_line;
};

std::vector<LegendEntry> legend_of(const Chart& chart) {
  std::vector<LegendEntry> entries;
  std::set<std::string> names;
  for (const ChartLine& line : chart.lines) {
    if (!line.name.empty() && names.insert(line.name).second)
      entries.push_back({line.name, line.color, true});
  }
  for (const ChartBand& band : chart.bands) {
    if (!band.name.empty() && names.insert(band.name).second)
      entries.push_back({band.name, band.color, false});
  }
  return entries;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart), legend_(legend_of(chart)) {
    double row = kLeft;
    for (const LegendEntry& entry : legend_) {
      const double width = 24 + kLetter * static_cast<double>(entry.name.size()) + 16;
      if (row + width > chart.width - kRight && row > kLeft) {
        row = kLeft;
        ++rows_;
      }
      places_.emplace_back(row, rows_);
      row += width;
    }
    bottom_ = kBottom + (legend_.empty() ? 0.0 : kLegendRow * (rows_ + 1));
  }

  std::string svg() {
    text_ = print(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n",
        chart_.width, chart_.height);
    text_ += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    label(chart_.width / 2, 22, "middle", chart_.title);
    for (const ChartBand& band : chart_.bands)
      rectangle(x(band.from), kTop, x(band.to) - x(band.from), y(chart_.y.low) - kTop, band.color);
    axes();
    for (const ChartLine& line : chart_.lines) polyline(line);
    legend();
    return text_ + "</svg>\n";
  }

 private:
  double x(double value) const {
    return kLeft + (value - chart_.x.low) / span(chart_.x) * (chart_.width - kLeft - kRight);
  }
  double y(double value) const {
    return chart_.height - bottom_ -
           (value - chart_.y.low) / span(chart_.y) * (chart_.height - kTop - bottom_);
  }
  static double span(const ChartAxis& axis) { return std::max(axis.high - axis.low, 1e-12); }

  void label(double at_x, double at_y, const char* anchor, const std::string& words) {
    text_ += print("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", at_x, at_y, anchor) +
             escaped(words) + "</text>\n";
  }
  void rectangle(double left, double top, double width, double height, const std::string& color) {
    text_ += print("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n",
                   left, top, width, height, color.c_str());
  }
  void segment(double from_x, double from_y, double to_x, double to_y, const std::string& color,
               int width) {
    text_ += print(
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
        "stroke-width=\"%d\"/>\n",
        from_x, to_x, from_y, to_y, color.c_str(), width);
  }

  void axes() {
    for (int i = 0; i <= kTicks; ++i) {
      const double at_x = chart_.x.low + span(chart_.x) * i / kTicks;
      const double at_y = chart_.y.low + span(chart_.y) * i / kTicks;
      label(x(at_x), chart_.height - bottom_ + 18, "middle", chart_.x.label(at_x));
      label(kLeft - 8, y(at_y) + 4, "end", chart_.y.label(at_y));
      segment(kLeft, y(at_y), chart_.width - kRight, y(at_y), "#ddd", 1);
    }
    label(chart_.width / 2, chart_.height - bottom_ + 38, "middle", chart_.x.title);
    if (!chart_.y.title.empty()) label(kLeft - 8, kTop - 12, "end", chart_.y.title);
  }

  void polyline(const ChartLine& line) {
    text_ += "<polyline fill=\"none\" stroke=\"" + line.color + "\" stroke-width=\"2\" points=\"";
    for (const auto& [at_x, at_y] : line.points) text_ += print("%.1f,%.1f ", x(at_x), y(at_y));
    text_ += "\"/>\n";
  }

  void legend() {
    const double top = chart_.height - kLegendRow * (rows_ + 1);
    for (size_t i = 0; i < legend_.size(); ++i) {
      const auto [left, row] = places_[i];
      const double middle = top + kLegendRow * row;
      if (legend_[i].is_line) {
        segment(left, middle, left + 18, middle, legend_[i].color, 2);
      } else {
        rectangle(left, middle - 6, 18, 12, legend_[i].color);
      }
      label(left + 24, middle + 4, "start", legend_[i].name);
    }
  }

  const Chart& chart_;
  std::vector<LegendEntry> legend_;
  std::vector<std::pair<double, int>> places_;  // left edge and row of each entry
  int rows_ = 0;                                // of the legend, less one
  double bottom_ = kBottom;
  std::string text_;
};

}  // namespace

std::string chart_svg(const Chart& chart) {
  return Drawing(chart).svg();
}

}  // namespace atelier::report
