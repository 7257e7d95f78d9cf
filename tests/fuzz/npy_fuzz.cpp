// A whole .npy file, and an archive of them (.npz) from the same bytes.
#include "tests/fuzz/memory_source.h"
#include "tests/fuzz/reading.h"
#include "trireme/base/zip_members.h"
#include "trireme/data/internal/npy.h"

using namespace trireme;

extern "C" int fuzz_npy(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view input = fuzz::text_in(bytes, size);
  fuzz::is_read([&] { data::parse_npy(input); });
  const fuzz::MemorySource archive(input);
  const auto range = [&](std::int64_t offset, std::int64_t bytes) {
    return data::read_text(archive, offset, bytes);
  };
  fuzz::is_read([&] {
    for (const ZipMember& member :
         zip_members({.name = archive.name(), .size = archive.size(), .read = range})) {
      const std::string content = data::read_text(archive, member.offset, member.size);
      fuzz::is_read([&] { data::parse_npy(content); });
    }
  });
  return 0;
}
