// A whole .npy file, and an archive of them (.npz) from the same bytes.
#include "tests/fuzz/memory_source.h"
#include "tests/fuzz/reading.h"
#include "trireme/data/internal/npy.h"
#include "trireme/data/internal/zip_members.h"

using namespace trireme;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view input = fuzz::text_in(bytes, size);
  fuzz::is_read([&] { data::parse_npy(input); });
  const fuzz::MemorySource archive(input);
  fuzz::is_read([&] {
    for (const data::ZipMember& member : data::zip_members(archive)) {
      const std::string content = data::read_text(archive, member.offset, member.size);
      fuzz::is_read([&] { data::parse_npy(content); });
    }
  });
  return 0;
}
