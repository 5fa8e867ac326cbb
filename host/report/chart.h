// A chart as an SVG image: axes, lines, bands behind them, and a legend.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace atelier::report {

struct ChartAxis {
  std::string title;  // empty: none
  double low = 0.0, high = 1.0;
  std::function<std::string(double value)> label;  // of a place on it
};

struct ChartLine {
  std::string name, color;                        // "#1f77b4"; a name is written in the legend
  std::vector<std::pair<double, double>> points;  // x, y
};

// A stretch of the x axis.
struct ChartBand {
  std::string name, color;
  double from = 0.0, to = 0.0;
};

struct Chart {
  std::string title;
  ChartAxis x = {}, y = {};
  std::vector<ChartBand> bands = {};
  std::vector<ChartLine> lines = {};
  double width = 640, height = 400;  // pixels
};

// Lines and bands without a name are left out of the legend, and names are written once.
std::string chart_svg(const Chart& chart);

}  // namespace atelier::report
