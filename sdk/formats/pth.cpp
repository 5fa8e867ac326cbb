#include "formats/pth.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "formats/escape.h"
#include "formats/pickle.h"

namespace atelier::formats {
namespace {

using Kind = PickleValue::Kind;

struct Named {
  std::string_view name;
  DType dtype;
};
// A storage of one dtype; "UntypedStorage" is one of bytes.
constexpr Named kStorages[] = {
    {"torch.FloatStorage", DType::kF32},
    {"torch.DoubleStorage", DType::kF64},
    {"torch.HalfStorage", DType::kF16},
    {"torch.BFloat16Storage", DType::kBF16},
    {"torch.LongStorage", DType::kI64},
    {"torch.IntStorage", DType::kI32},
    {"torch.ShortStorage", DType::kI16},
    {"torch.CharStorage", DType::kI8},
    {"torch.ByteStorage", DType::kU8},
    {"torch.BoolStorage", DType::kBool},
    {"torch.ComplexFloatStorage", DType::kC64},
    {"torch.UntypedStorage", DType::kU8},
    {"torch.storage.UntypedStorage", DType::kU8},
};
// What tensors are that no storage has a name for.
constexpr Named kTorchDTypes[] = {
    {"torch.float8_e4m3fn", DType::kF8E4M3},
    {"torch.float8_e5m2", DType::kF8E5M2},
    {"torch.float8_e4m3fnuz", DType::kF8E4M3Fnuz},
    {"torch.float8_e5m2fnuz", DType::kF8E5M2Fnuz},
    {"torch.float8_e8m0fnu", DType::kF8E8M0},
    {"torch.uint16", DType::kU16},
    {"torch.uint32", DType::kU32},
    {"torch.uint64", DType::kU64},
};
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2",
                           kTensorOfDType = "torch._utils._rebuild_tensor_v3",
                           kParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kCalls[] = {kTensor, kTensorOfDType, kParameter, "torch.Size",
                                       "collections.OrderedDict"};
// A dict of one of these alone is what it holds.
constexpr std::string_view kWrappers[] = {"state_dict", "module", "model_state"};
constexpr const char* kDownloadAgain = "the file is damaged, download it again";

std::optional<DType> named_dtype(std::span<const Named> table, std::string_view name) {
  for (const Named& row : table) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

bool is_known(std::string_view name) {
  return named_dtype(kStorages, name) || named_dtype(kTorchDTypes, name) ||
         std::find(std::begin(kCalls), std::end(kCalls), name) != std::end(kCalls);
}

// The archive of one file. Its entries stand in one folder.
class Archive {
 public:
  Archive(uint64_t file_size, const ReadBytes& read)
      : file_size_(file_size), read_(read), entries_(read_zip_directory(file_size, read)) {
    constexpr std::string_view kPickle = "/data.pkl";
    for (const auto& [name, entry] : entries_) {
      if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
      if (!folder_.empty())
        throw ParseError("PTH_ARCHIVE", "the zip archive holds two files data.pkl", kDownloadAgain);
      folder_ = name.substr(0, name.size() - kPickle.size() + 1);
    }
    if (folder_.empty())
      throw ParseError("PTH_ARCHIVE", "is a zip archive, and none of torch.save()",
                       "unpack it, or pass the safetensors files of the model", 0);
    if (entries_.contains(folder_ + "constants.pkl"))
      throw ParseError("PTH_SCRIPT", "is a TorchScript program, not a file of weights",
                       "save its state_dict() with torch.save()", 0);
  }

  struct Bytes {
    uint64_t begin = 0, count = 0;
  };
  Bytes find(const std::string& name) const {
    const auto entry = entries_.find(folder_ + name);
    if (entry == entries_.end())
      throw ParseError("PTH_STORAGE",
                       "the file " + quote_and_escape(name) + " is missing from the archive",
                       kDownloadAgain);
    return {find_stored_bytes(entry->first, entry->second, file_size_, read_), entry->second.bytes};
  }

  std::string text(const std::string& name, uint64_t most) const {
    const Bytes bytes = find(name);
    if (bytes.count > most)
      throw ParseError("PTH_ARCHIVE", "entry " + quote_and_escape(name) + ": is " +
                                          std::to_string(bytes.count) + " bytes long, " +
                                          std::to_string(most) + " are the most");
    return read_(bytes.begin, bytes.count);
  }
  uint64_t file_size() const { return file_size_; }
  bool has(const std::string& name) const { return entries_.contains(folder_ + name); }

 private:
  uint64_t file_size_;
  const ReadBytes& read_;
  std::map<std::string, ZipEntry, std::less<>> entries_;
  std::string folder_;
};

// The tensors among the values of a pickle.
class Tensors {
 public:
  Tensors(const Pickle& pickle, const Archive& archive) : pickle_(pickle), archive_(archive) {}

  std::vector<PthTensor> read() {
    const PickleValue& dict = unwrapped();
    std::map<std::string, PthTensor> tensors;  // of names that come twice the last counts
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& key = pickle_.at(dict.items[i]);
      name_ = key.text;
      if (const PickleValue* call = tensor_call(dict.items[i + 1])) {
        if (key.kind != Kind::kText) refuse("has a name that is no text");
        if (name_.size() > kMaxNameBytes)
          refuse("its name has " + std::to_string(name_.size()) + " bytes, " +
                 std::to_string(kMaxNameBytes) + " are the most");
        tensors.insert_or_assign(name_, tensor(*call));
      }
    }
    if (tensors.empty())
      throw ParseError("PTH_DICT", "holds no dict of tensors",
                       "save the weights by their names, as safetensors");
    std::vector<PthTensor> result;
    for (auto& [name, tensor] : tensors) result.push_back(std::move(tensor));
    return result;
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    throw ParseError("PTH_TENSOR", "tensor " + quote_and_escape(name_) + ": " + message,
                     kDownloadAgain);
  }

  const PickleValue& unwrapped() const {
    const PickleValue* dict = &pickle_.at(pickle_.root);
    // A dict may hold itself, so the ways down are counted.
    for (int depth = 0; depth < 4 && dict->kind == Kind::kDict && dict->items.size() == 2;
         ++depth) {
      const PickleValue &key = pickle_.at(dict->items[0]), &value = pickle_.at(dict->items[1]);
      const bool is_wrapper =
          std::find(std::begin(kWrappers), std::end(kWrappers), key.text) != std::end(kWrappers);
      if (!is_wrapper || value.kind != Kind::kDict) break;
      dict = &value;
    }
    if (dict->kind != Kind::kDict)
      throw ParseError("PTH_DICT", "holds no dict of tensors",
                       "save the weights by their names, as safetensors");
    return *dict;
  }

  // The call that makes a tensor, within that which makes it a parameter; null: another value.
  const PickleValue* tensor_call(PickleRef ref) const {
    for (int depth = 0; depth < 2; ++depth) {
      const PickleValue& value = pickle_.at(ref);
      if (value.kind != Kind::kCall) return nullptr;
      const std::string& name = pickle_.at(value.items[0]).text;
      if (name == kTensor || name == kTensorOfDType) return &value;
      const std::vector<PickleRef>& arguments = pickle_.at(value.items[1]).items;
      if (name != kParameter || arguments.empty()) return nullptr;
      ref = arguments.front();
    }
    return nullptr;
  }

  int64_t natural(PickleRef ref, const char* what) const {
    const PickleValue& value = pickle_.at(ref);
    if (value.kind != Kind::kInteger || value.integer < 0)
      refuse(std::string(what) + " is no number from 0 on");
    return value.integer;
  }

  std::vector<int64_t> naturals(PickleRef ref, const char* what) const {
    const PickleValue& value = pickle_.at(ref);
    if (value.kind != Kind::kSequence || value.items.size() > kMaxRank)
      refuse(std::string(what) + " is no list of at most " + std::to_string(kMaxRank) + " numbers");
    std::vector<int64_t> result;
    for (const PickleRef item : value.items) result.push_back(natural(item, what));
    return result;
  }

  struct Storage {
    DType dtype = DType::kU8;
    Archive::Bytes bytes;
  };
  // ("storage", class, name, device, elements)
  Storage storage(PickleRef ref) {
    const PickleValue& value = pickle_.at(ref);
    const PickleValue* id = value.kind == Kind::kPersistent ? &pickle_.at(value.items[0]) : nullptr;
    if (id == nullptr || id->kind != Kind::kSequence || id->items.size() != 5 ||
        pickle_.at(id->items[0]).text != "storage" || pickle_.at(id->items[2]).kind != Kind::kText)
      refuse("its storage is none of torch.save()'s");
    const std::optional<DType> dtype = named_dtype(kStorages, pickle_.at(id->items[1]).text);
    if (!dtype) refuse("its storage has no dtype");
    const std::string& key = pickle_.at(id->items[2]).text;
    const auto known = storages_.find(key);
    const Archive::Bytes bytes =
        known != storages_.end()
            ? known->second
            : storages_.emplace(key, archive_.find("data/" + key)).first->second;
    const auto count = static_cast<uint64_t>(natural(id->items[4], "its storage's length"));
    uint64_t wanted = 0;
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dtype_bits(*dtype) / 8), &wanted) ||
        wanted > bytes.count)
      refuse("its storage " + quote_and_escape(key) + " has " + std::to_string(bytes.count) +
             " bytes, fewer than " + std::to_string(count) + " elements");
    return {*dtype, {bytes.begin, wanted}};
  }

  // (storage, offset, shape, strides, needs a gradient, hooks), and the dtype behind them.
  PthTensor tensor(const PickleValue& call) {
    const bool has_dtype = pickle_.at(call.items[0]).text == kTensorOfDType;
    const std::vector<PickleRef>& arguments = pickle_.at(call.items[1]).items;
    if (arguments.size() < (has_dtype ? 7 : 6)) refuse("is described by too few values");
    const Storage from = storage(arguments[0]);
    PthTensor tensor;
    tensor.name = name_;
    tensor.dtype = from.dtype;
    if (has_dtype) {
      const std::string& wanted = pickle_.at(arguments[6]).text;
      const std::optional<DType> dtype = named_dtype(kTorchDTypes, wanted);
      if (!dtype || from.dtype != DType::kU8)
        refuse("its dtype " + quote_and_escape(wanted, 80) + " is not known");
      tensor.dtype = *dtype;
    }
    tensor.shape = naturals(arguments[2], "its shape");
    tensor.strides = naturals(arguments[3], "its strides");
    if (tensor.shape.size() != tensor.strides.size()) refuse("has a stride for other axes");
    place(tensor, natural(arguments[1], "its offset"), from.bytes);
    return tensor;
  }

  // Checks that every element lies in the storage.
  void place(PthTensor& tensor, int64_t offset, const Archive::Bytes& from) const {
    const auto element = static_cast<uint64_t>(dtype_bits(tensor.dtype) / 8);
    // Strides of 0 would make few bytes into as many as one likes.
    if (tensor_bytes(tensor.name, tensor.dtype, tensor.shape) > archive_.file_size())
      refuse("is larger than the whole file");
    const bool is_empty =
        std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
    uint64_t last = 0, in_order = 1;
    bool overflows = false, is_in_order = true;
    for (size_t axis = tensor.shape.size(); axis-- > 0 && !is_empty;) {
      const auto length = static_cast<uint64_t>(tensor.shape[axis]),
                 stride = static_cast<uint64_t>(tensor.strides[axis]);
      uint64_t way = 0;
      overflows |= __builtin_mul_overflow(length - 1, stride, &way);
      overflows |= __builtin_add_overflow(last, way, &last);
      is_in_order = is_in_order && (length == 1 || stride == in_order);
      in_order *= length;
    }
    uint64_t begin = 0, end = 0;
    overflows |= __builtin_mul_overflow(static_cast<uint64_t>(offset), element, &begin);
    overflows |= __builtin_add_overflow(last, 1, &end);
    overflows |= __builtin_mul_overflow(end, element, &end);
    overflows |= __builtin_add_overflow(begin, end, &end);
    if (is_empty) begin = end = 0;
    if (overflows || end > from.count)
      refuse("its elements leave its storage of " + std::to_string(from.count) + " bytes");
    if (is_in_order) tensor.strides.clear();
    tensor.begin = from.begin + begin;
    tensor.end = from.begin + end;
  }

  const Pickle& pickle_;
  const Archive& archive_;
  std::string name_;  // of the tensor that is read
  std::map<std::string, Archive::Bytes> storages_;
};

}  // namespace

PthIndex read_pth(uint64_t file_size, const ReadBytes& read) {
  const Archive archive(file_size, read);
  PthIndex index;
  if (archive.has("byteorder")) {
    const std::string order = archive.text("byteorder", 16);
    if (order != "little" && order != "big")
      throw ParseError("PTH_ARCHIVE", "its byte order is " + quote_and_escape(order),
                       kDownloadAgain);
    index.is_big_endian = order == "big";
  }
  const Archive::Bytes place = archive.find("data.pkl");
  index.pickle_end = place.begin + place.count;
  const std::string bytes = archive.text("data.pkl", kMaxPickleBytes);
  const Pickle pickle = read_pickle(bytes, is_known);
  index.tensors = Tensors(pickle, archive).read();
  return index;
}

}  // namespace atelier::formats
