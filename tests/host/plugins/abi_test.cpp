#include "host/plugins/abi.h"

#include "atelier/plugin.h"

#include "support/files.h"

using atelier::plugins::why_refused;

namespace {

constexpr const char* kHost = "sdk=2.3+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++";

std::string refused(const std::string& plugin) {
  return why_refused(plugin, kHost);
}

}  // namespace

TEST_CASE("A plugin of this SDK, or of a MINOR before it, is opened", "[plugins]") {
  CHECK(refused(kHost).empty());
  CHECK(refused("sdk=2.2+bbbb torch=2.11.0 cxx11abi=1 stdlib=libstdc++").empty());
  CHECK(refused("sdk=2.0+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++").empty());
  CHECK(why_refused(ATELIER_ABI, ATELIER_ABI).empty());
}

TEST_CASE("A plugin of another SDK is refused, and the reason comes first", "[plugins]") {
  const auto [plugin, why] = GENERATE(table<std::string, std::string>({
      {"sdk=2.4+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++",
       "it was built with SDK 2.4, and this program has SDK 2.3 ("},
      {"sdk=1.3+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++",
       "it was built with SDK 1.3, and this program has SDK 2.3 ("},
      {"sdk=3.0+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++",
       "it was built with SDK 3.0, and this program has SDK 2.3 ("},
      {"sdk=2.3+bbbb torch=2.11.0 cxx11abi=1 stdlib=libstdc++",
       "it was built with SDK 2.3, and this program has SDK 2.3 with other headers ("},
      {"sdk=2.3+aaaa torch=2.10.0 cxx11abi=1 stdlib=libstdc++",
       "it was built with \"torch=2.10.0\", and this program with \"torch=2.11.0\" ("},
      {"sdk=2.2+aaaa torch=2.11.0 cxx11abi=0 stdlib=libstdc++",
       "it was built with \"cxx11abi=0\", and this program with \"cxx11abi=1\" ("},
      {"sdk=2.3+aaaa torch=2.11.0 cxx11abi=1 stdlib=libstdc++ asan",
       "it was built with \"asan\", and this program with nothing more ("},
      {"sdk=2.3+aaaa torch=2.11.0 cxx11abi=1",
       "it was built with nothing more, and this program with \"stdlib=libstdc++\" ("},
  }));
  const std::string said = refused(plugin);
  CHECK_THAT(said, Catch::StartsWith(why));
  CHECK_THAT(said, Catch::EndsWith("(\"" + plugin + "\", here \"" + kHost + "\")"));
}

TEST_CASE("An ABI string that is none is refused", "[plugins]") {
  const auto text = GENERATE("", "sdk=", "sdk=2", "sdk=2.", "sdk=2.3", "sdk=-2.3+aaaa",
                             "sdk=99999999999.0+a", "torch=2.11.0", "sdk=2.3\n+aaaa");
  CHECK_THAT(refused(text), Catch::StartsWith("its ABI string is none ("));
}

// Within a version plugins are told apart by the hash alone, so a version has one.
TEST_CASE("The public headers are those that their version was recorded with", "[plugins]") {
  const std::string hashes = atelier::test::read_bytes(VERSION_HASHES);
  INFO(
      "public headers changed: raise MINOR in atelier/version.h where they only got more, MAJOR "
      "otherwise, unless this version is not released yet; then write into "
      "sdk/version_hashes.txt: " ATELIER_SDK_VERSION " " ATELIER_SDK_HASH);
  CHECK_THAT(hashes, Catch::Contains("\n" ATELIER_SDK_VERSION " " ATELIER_SDK_HASH "\n"));
}
