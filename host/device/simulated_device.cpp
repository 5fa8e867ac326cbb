#include "host/device/simulated_device.h"

#include <charconv>
#include <cmath>
#include <string>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::device {

namespace {

constexpr std::string_view kName = "simulated";

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10},
                           {"GB", 1e9},     {"MB", 1e6},     {"KB", 1e3}};

// "512MiB"; nullopt when it is no size above 0.
std::optional<double> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  for (const Unit& unit : kUnits) {
    const double bytes = number * unit.bytes;
    if (text == unit.name && bytes >= 1 && bytes < 1e18) return bytes;
  }
  return std::nullopt;
}

}  // namespace

std::optional<memory::SimulatedDeviceOptions> parse_simulated_device(std::string_view name) {
  if (!name.starts_with(kName)) return std::nullopt;
  std::string_view rest = name.substr(kName.size());
  memory::SimulatedDeviceOptions options;
  if (rest.empty()) return options;
  const Error malformed(ErrorCode::kInvalidArgument,
                        "--device " + formats::quote_and_escape(name) + " is not known",
                        "write simulated:MEMORY:RATE, for instance simulated:512MiB:4GB/s");
  if (!rest.starts_with(':')) throw malformed;
  rest.remove_prefix(1);
  const size_t colon = rest.find(':');
  const auto capacity = parse_bytes(rest.substr(0, colon));
  if (!capacity) throw malformed;
  options.capacity = static_cast<int64_t>(*capacity);
  if (colon == std::string_view::npos) return options;
  rest.remove_prefix(colon + 1);
  if (!rest.ends_with("/s")) throw malformed;
  const auto rate = parse_bytes(rest.substr(0, rest.size() - 2));
  if (!rate) throw malformed;
  options.bytes_per_second = *rate;
  return options;
}

}  // namespace atelier::device
