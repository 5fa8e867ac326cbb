#include "formats/multipart.h"

#include <algorithm>
#include <utility>

#include "formats/escape.h"
#include "formats/http_fields.h"
#include "formats/url.h"

namespace atelier::formats {

namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr size_t kMaxBoundary = 70;  // RFC 2046

std::string boundary_of(std::string_view content_type) {
  const MediaType type = parse_media_type(content_type);
  const auto found = type.parameters.find("boundary");
  if (type.type != "multipart/form-data" || found == type.parameters.end())
    throw ParseError("MULTIPART_TYPE",
                     quote_and_escape(content_type) + " is no multipart/form-data with a boundary");
  const std::string& boundary = found->second;
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7F; };
  if (boundary.empty() || boundary.size() > kMaxBoundary || boundary.back() == ' ' ||
      !std::all_of(boundary.begin(), boundary.end(), is_plain))
    throw ParseError("MULTIPART_TYPE", "the boundary " + quote_and_escape(boundary) +
                                           " is not of 1 to 70 plain characters");
  return boundary;
}

class FormReader {
 public:
  FormReader(std::string_view body, const std::string& boundary, const MultipartLimits& limits)
      : delimiter_("\r\n--" + boundary), body_(body), limits_(limits) {}

  std::vector<MultipartPart> read() {
    std::vector<MultipartPart> parts;
    // The first delimiter has no line end before it.
    if (!take(std::string_view(delimiter_).substr(kLineEnd.size())))
      fail("the body does not begin with the boundary");
    while (!take("--")) {
      if (!take(kLineEnd)) fail("a boundary is not followed by a line end");
      if (parts.size() == limits_.max_parts)
        throw ParseError("MULTIPART_TOO_LARGE",
                         "the form has more than " + std::to_string(limits_.max_parts) + " parts");
      parts.push_back(read_part());
    }
    take(kLineEnd);
    if (at_ != body_.size()) fail("something follows the end of the form");
    return parts;
  }

 private:
  MultipartPart read_part() {
    MultipartPart part;
    bool has_name = false;
    const size_t end_of_headers = at_ + limits_.max_header_bytes;
    for (std::string_view line = read_line(end_of_headers); !line.empty();
         line = read_line(end_of_headers)) {
      const size_t colon = line.find(':');
      if (colon == std::string_view::npos || !is_http_token(line.substr(0, colon)))
        fail("a line of a part's header has no name");
      has_name |= read_header(part, lower_case(line.substr(0, colon)), line.substr(colon + 1));
    }
    if (!has_name) fail("a part has no Content-Disposition");
    const size_t end = body_.find(delimiter_, at_);
    if (end == std::string_view::npos)
      fail("the part " + quote_and_escape(part.name) + " has no boundary at its end");
    part.bytes = body_.substr(at_, end - at_);
    at_ = end + delimiter_.size();
    return part;
  }

  // A line of a part's header, without its end.
  std::string_view read_line(size_t end_of_headers) {
    const size_t limit = std::min(end_of_headers, body_.size());
    const size_t end = body_.substr(0, limit).find(kLineEnd, at_);
    if (end == std::string_view::npos) {
      if (limit < body_.size())
        throw ParseError("MULTIPART_TOO_LARGE", "the header of a part has more than " +
                                                    std::to_string(limits_.max_header_bytes) +
                                                    " bytes");
      fail("the header of a part has no end");
    }
    const std::string_view line = body_.substr(at_, end - at_);
    at_ = end + kLineEnd.size();
    return line;
  }

  // Whether it gave the part its name.
  bool read_header(MultipartPart& part, std::string_view name, std::string_view value) const {
    if (name == "content-disposition") {
      if (!part.name.empty()) fail("a part has two names");
      read_disposition(part, value);
      return true;
    }
    if (name == "content-type") {
      const size_t begin = std::min(value.find_first_not_of(" \t"), value.size());
      parse_media_type(value);
      part.content_type = value.substr(begin);
    }
    if (name == "content-transfer-encoding") {
      const std::string encoding = parse_media_type(value).type;
      if (encoding != "binary" && encoding != "8bit" && encoding != "7bit")
        fail("the transfer encoding " + quote_and_escape(encoding) + " of a part is not taken");
    }
    return false;
  }

  void read_disposition(MultipartPart& part, std::string_view value) const {
    MediaType disposition = parse_media_type(value);
    HttpParameters& parameters = disposition.parameters;
    const auto name = parameters.find("name");
    if (disposition.type != "form-data" || name == parameters.end() || name->second.empty())
      fail("a part has no name");
    part.name = std::move(name->second);
    if (const auto file = parameters.find("filename"); file != parameters.end())
      part.file_name = std::move(file->second);
    if (const auto file = parameters.find("filename*"); file != parameters.end())
      part.file_name = extended(file->second);
  }

  // A name as RFC 5987 writes those that are not ASCII: "utf-8''%e6%9d%83.png".
  std::string extended(std::string_view value) const {
    const size_t charset = std::min(value.find('\''), value.size());
    const size_t language = value.find('\'', std::min(charset + 1, value.size()));
    if (lower_case(value.substr(0, charset)) != "utf-8" || language == std::string_view::npos)
      fail("the file name " + quote_and_escape(value) + " is not UTF-8");
    return decode_percent(value.substr(language + 1));
  }

  bool take(std::string_view text) {
    if (body_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw ParseError("MULTIPART_FORM", what, {}, at_);
  }

  const std::string delimiter_;
  const std::string_view body_;
  const MultipartLimits limits_;
  size_t at_ = 0;
};

}  // namespace

std::vector<MultipartPart> parse_multipart(std::string_view content_type, std::string_view body,
                                           const MultipartLimits& limits) {
  return FormReader(body, boundary_of(content_type), limits).read();
}

}  // namespace atelier::formats
