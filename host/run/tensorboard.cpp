// TensorBoard's event files: protocol buffers between lengths and checksums, written by hand.
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sys/time.h>
#include <unistd.h>

#include "host/run/appended_file.h"
#include "host/run/durable.h"
#include "host/run/metrics.h"

namespace atelier::run {

namespace {

// CRC-32C, reflected.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes)
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The bytes of a number as they lie in memory: little-endian on every machine we run on.
template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Fields of a message: a key of number and wire type, then the value.
enum WireType : uint64_t { kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5 };

std::string key(uint64_t number, WireType type) {
  return varint(number << 3 | type);
}
std::string bytes_field(uint64_t number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}
std::string double_field(uint64_t number, double value) {
  return key(number, kDouble) + raw(value);
}
std::string float_field(uint64_t number, float value) {
  return key(number, kFloat) + raw(value);
}
std::string integer_field(uint64_t number, int64_t value) {
  return key(number, kVarint) + varint(static_cast<uint64_t>(value));
}

double wall_time() {
  timeval now = {};
  gettimeofday(&now, nullptr);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_usec) * 1e-6;
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event(const std::string& fields) {
  return double_field(1, wall_time()) + fields;
}

std::string record(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  return length + raw(masked_crc(length)) + event + raw(masked_crc(event));
}

class TensorBoardWriter final : public MetricsWriter {
 public:
  explicit TensorBoardWriter(const std::string& path) : file_(path, /*is_new=*/true) {
    file_.append(record(event(bytes_field(3, "brain.Event:2"))));
  }

  void write(int64_t step, const std::map<std::string, double>& values) override {
    std::string summary;  // Summary.value = 1; Value.tag = 1, Value.simple_value = 2
    for (const auto& [tag, value] : values)
      summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
    append(step, summary);
  }

  void write_image(int64_t step, const EncodedImage& image) override {
    // Value.image = 4: height = 1, width = 2, colorspace = 3 (3 is RGB), encoded_image_string = 4.
    // Value.metadata = 9: plugin_data = 1 with plugin_name = 1, summary_description = 3.
    const std::string encoded = integer_field(1, image.height) + integer_field(2, image.width) +
                                integer_field(3, 3) + bytes_field(4, image.png);
    append(step, bytes_field(1, bytes_field(1, image.tag) + bytes_field(4, encoded) +
                                    bytes_field(9, bytes_field(1, bytes_field(1, "images")) +
                                                       bytes_field(3, image.prompt))));
  }

 private:
  void append(int64_t step, const std::string& summary) {
    std::string records;
    // SessionLog.status = START: readers drop what earlier files of the folder say of this step
    // and later ones.
    if (!has_started_)
      records = record(event(integer_field(2, step) + bytes_field(7, integer_field(1, 1))));
    has_started_ = true;
    file_.append(records + record(event(integer_field(2, step) + bytes_field(5, summary))));
  }

  AppendedFile file_;
  bool has_started_ = false;
};

}  // namespace

std::unique_ptr<MetricsWriter> open_tensorboard(const std::string& folder) {
  make_folders(folder);
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  static int counter = 0;  // two files within a second
  std::array<char, 512> name;
  std::snprintf(name.data(), name.size(), "events.out.tfevents.%010lld.%s.%d.%d",
                static_cast<long long>(std::time(nullptr)), host.data(), getpid(), counter++);
  return std::make_unique<TensorBoardWriter>(folder + "/" + name.data());
}

}  // namespace atelier::run
