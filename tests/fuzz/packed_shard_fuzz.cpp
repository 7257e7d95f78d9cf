// A shard of packed data: header, records, index, trailer. The last byte selects the parts that get correct
// checksums (1: header, 2: trailer, 4: index). So the code after the checks is fuzzed, too.
#include <cstring>

#include "tests/fuzz/reading.h"
#include "trireme/base/crc32c.h"
#include "trireme/data/internal/record_shard.h"

using namespace trireme;

namespace {

constexpr std::size_t kHeader = 16, kTrailer = 32;

void put(std::string& shard, std::size_t at, std::uint32_t checksum) {
  std::memcpy(shard.data() + at, &checksum, sizeof checksum);
}

template <class Number>
Number number_at(const std::string& shard, std::size_t at) {
  Number number{};
  std::memcpy(&number, shard.data() + at, sizeof number);
  return number;
}

/// Returns the summary that the manifest would have for this shard.
data::ShardSummary repair(std::string& shard, unsigned what) {
  const std::size_t end = shard.size() - kTrailer;
  const std::string_view bytes = shard;
  if ((what & 1) != 0) put(shard, 12, crc32c(bytes.substr(0, 12)));
  const auto index = number_at<std::uint64_t>(shard, end);
  if ((what & 4) != 0 && index <= end) put(shard, end + 16, crc32c(bytes.substr(index, end - index)));
  if ((what & 2) != 0) put(shard, end + 20, crc32c(bytes.substr(end, 20)));
  return {.file = "train-00000.trr",
          .records = number_at<std::int64_t>(shard, end + 8),
          .bytes = shard.size(),
          .index_crc32c = number_at<std::uint32_t>(shard, end + 16)};
}

}  // namespace

extern "C" int fuzz_packed_shard(const std::uint8_t* bytes, std::size_t size) {
  static const fuzz::Folder folder;
  if (size < kHeader + kTrailer + 1) return 0;
  std::string shard(fuzz::text_in(bytes, size - 1));
  const data::ShardSummary summary = repair(shard, bytes[size - 1]);
  folder.put(summary.file, shard);
  fuzz::is_read([&] {
    const data::ShardFile file(data::hold_file(folder.path() / summary.file), summary, 7);
    for (std::int64_t record = 0; record < file.records(); ++record) {
      std::string into(file.bytes_of(record), '\0');
      fuzz::is_read([&] { file.read(record, 1, into); });
    }
    file.check_unchanged();
  });
  return 0;
}
