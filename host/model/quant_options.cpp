#include "host/model/quant_options.h"

#include <algorithm>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/problems.h"

namespace atelier::model {
namespace {

using weights::Storage;

constexpr std::pair<std::string_view, Storage> kMethods[] = {{"bitsandbytes_nf4", Storage::kNf4},
                                                             {"bitsandbytes_fp4", Storage::kFp4},
                                                             {"torchao_int8_w8a16", Storage::kInt8},
                                                             {"torchao_fp8_w8a16", Storage::kFp8}};

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

QuantOption parse_option(const std::string& text) {
  const std::string place = "--quant_options " + formats::quote_and_escape(text) + ": ";
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw Error(ErrorCode::kInvalidArgument, place + "no entry and method",
                "write ENTRY:bitsandbytes_nf4, or --storage dit=nf4");
  const size_t slash = std::min(text.find('/', colon), text.size());
  const std::string method = text.substr(colon + 1, slash - colon - 1);
  const auto* known =
      std::ranges::find(kMethods, method, &std::pair<std::string_view, Storage>::first);
  if (known == std::end(kMethods)) {
    std::vector<std::string> names;
    for (const auto& [name, storage] : kMethods) names.emplace_back(name);
    throw Error(ErrorCode::kUnsupported,
                place + "the method is not one of " + report::list_names(names),
                "use one of them; --storage dit=int8 --compute dit=w8a8 multiplies in 8 bits");
  }
  QuantOption option = {.entry = text.substr(0, colon), .storage = known->second};
  if (slash < text.size()) {
    for (std::string& layer : parts_of(text.substr(slash + 1), ','))
      option.plain_layers.insert(std::move(layer));
  }
  return option;
}

}  // namespace

bool QuantOption::leaves_plain(std::string_view layer) const {
  return std::ranges::any_of(plain_layers, [&](const std::string& name) {
    return layer == name || layer.ends_with("." + name) || layer.starts_with(name + ".");
  });
}

std::vector<QuantOption> parse_quant_options(const std::string& text) {
  std::vector<QuantOption> options;
  for (const std::string& part : parts_of(text, ';')) options.push_back(parse_option(part));
  return options;
}

}  // namespace atelier::model
