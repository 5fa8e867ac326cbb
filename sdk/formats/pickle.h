// Pickles as data: values without the classes and functions that would make them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

// A number in Pickle::values: values refer to each other so, and may do it in circles.
using PickleRef = uint32_t;

struct PickleValue {
  enum class Kind {
    kNone,
    kBoolean,
    kInteger,
    kReal,
    kText,
    kSequence,  // a tuple or a list
    kDict,
    kGlobal,     // the name of a class or function, "collections.OrderedDict"
    kCall,       // of the first item, with the arguments of the second
    kPersistent  // of the first item: something that is kept beside the pickle
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;           // booleans too
  std::string text;              // of kText and kGlobal
  std::vector<PickleRef> items;  // of a dict: key, value, key, value, …
};

struct Pickle {
  std::vector<PickleValue> values;
  PickleRef root = 0;

  const PickleValue& at(PickleRef ref) const { return values[ref]; }
};

// `is_known`: whether a name may stand in the pickle. Calls of "collections.OrderedDict" are dicts.
// Throws ParseError: PTH_PICKLE, PTH_OPCODE, PTH_GLOBAL, PTH_VALUES.
Pickle read_pickle(std::string_view bytes, const std::function<bool(std::string_view)>& is_known);

}  // namespace atelier::formats
