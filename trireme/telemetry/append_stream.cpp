#include "trireme/telemetry/append_stream.h"

#include <streambuf>
#include <string>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/telemetry/internal/appended_file.h"

namespace trireme::telemetry {

class AppendStream::Buffer : public std::streambuf {
 public:
  explicit Buffer(const std::filesystem::path& path) : file_(path) {}

 protected:
  int_type overflow(int_type character) override {
    if (!traits_type::eq_int_type(character, traits_type::eof()))
      waiting_ += traits_type::to_char_type(character);
    return traits_type::not_eof(character);
  }
  std::streamsize xsputn(const char* words, std::streamsize size) override {
    waiting_.append(words, static_cast<std::size_t>(size));
    return size;
  }
  int sync() override {
    try {
      file_.append(std::exchange(waiting_, {}));
      return 0;
    } catch (const DataError&) {
      return -1;
    }
  }

 private:
  AppendedFile file_;
  std::string waiting_;
};

AppendStream::AppendStream(const std::filesystem::path& path)
    : std::ostream(nullptr), buffer_(std::make_unique<Buffer>(path)) {
  rdbuf(buffer_.get());
}

AppendStream::~AppendStream() { flush(); }

}  // namespace trireme::telemetry
