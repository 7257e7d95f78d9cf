// A shard in the layout of WebDataset. The last byte selects whether headers get correct checksums, and
// whether the bytes are instead the index of a shard.
#include <cstdio>
#include <cstring>

#include "tests/fuzz/memory_source.h"
#include "tests/fuzz/reading.h"
#include "trireme/data/internal/tar_index.h"

using namespace trireme;

namespace {

constexpr std::size_t kBlock = 512, kChecksum = 148, kChecksumBytes = 8;

/// Writes a header checksum into each block that is not all zeros. Blocks of content change, too.
void repair(std::string& archive) {
  for (std::size_t at = 0; at + kBlock <= archive.size(); at += kBlock) {
    char* block = archive.data() + at;
    if (std::string_view(block, kBlock).find_first_not_of('\0') == std::string_view::npos) continue;
    std::memset(block + kChecksum, ' ', kChecksumBytes);
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(block[i]);
    std::snprintf(block + kChecksum, kChecksumBytes, "%06o", sum);
  }
}

}  // namespace

extern "C" int fuzz_tar(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  std::string archive(fuzz::text_in(bytes, size - 1));
  if ((bytes[size - 1] & 1) != 0) repair(archive);
  const fuzz::MemorySource source(archive);
  if ((bytes[size - 1] & 2) != 0) data::TarIndex::from_bytes(archive, source);
  fuzz::is_read([&] {
    const data::TarIndex index = data::TarIndex::scan(source);
    const auto again = data::TarIndex::from_bytes(index.to_bytes(source), source);
    if (!again || again->size() != index.size()) __builtin_trap();
    for (std::int64_t sample = 0; sample < index.size(); ++sample) {
      if (again->key(sample) != index.key(sample)) __builtin_trap();
      for (std::size_t field = 0; field < index.fields().size(); ++field) {
        const data::Extent& extent = index.extent(sample, field);
        data::read_text(source, extent.offset, extent.size);
      }
    }
  });
  return 0;
}
