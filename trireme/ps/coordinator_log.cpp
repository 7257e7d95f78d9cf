#include "trireme/ps/internal/coordinator_log.h"

#include <span>

#include "trireme/base/error.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

constexpr const char* kSnapshotName = "map.snapshot";
constexpr const char* kLogName = "map.log";
constexpr std::uint32_t kChangesPerSnapshot = 256;

/// Format: size, checksum, bytes.
std::vector<std::byte> framed(const MapChange& change) {
  const std::vector<std::byte> bytes = wire::encode(change);
  std::vector<std::byte> frame;
  wire::FieldWriter writer(frame);
  writer.write(static_cast<std::uint64_t>(bytes.size()));
  writer.write(static_cast<std::uint64_t>(hash_bytes(bytes)));
  frame.insert(frame.end(), bytes.begin(), bytes.end());
  return frame;
}

/// Removes the next change from the front; empty if there is no complete one.
std::optional<MapChange> next_change(std::span<const std::byte>& left) {
  wire::FieldReader reader(left);
  std::uint64_t size = 0, checksum = 0;
  reader.read(size);
  reader.read(checksum);
  if (!reader.valid() || size > reader.left().size()) return std::nullopt;
  const std::span<const std::byte> bytes = reader.left().first(size);
  if (hash_bytes(bytes) != checksum) return std::nullopt;
  left = reader.left().subspan(size);
  return wire::decode<MapChange>(bytes);
}

}  // namespace

ClusterMap CoordinatorLog::load() {
  ClusterMap map;
  if (const auto snapshot = disk_.read(kSnapshotName)) {
    std::span<const std::byte> left = *snapshot;
    const auto whole = next_change(left);
    if (!whole)
      throw DataError(text("the coordinator's ", kSnapshotName, " of ", snapshot->size(),
                           " bytes is damaged: put back a copy, or begin a new cluster in an empty folder"));
    map.apply(*whole);
  }
  if (const auto log = disk_.read(kLogName)) {
    std::span<const std::byte> left = *log;
    // Changes that the snapshot contains are older than the map, and are not applied.
    while (const auto change = next_change(left)) map.apply(*change);
  }
  if (map.version > 0) write_snapshot(map);
  return map;
}

void CoordinatorLog::append(const MapChange& change, const ClusterMap& after) {
  if (!is_whole_ || ++num_appended_ >= kChangesPerSnapshot) return write_snapshot(after);
  is_whole_ = false;  // after a failure part of a frame remains, and later frames would not be read
  disk_.append(kLogName, framed(change));
  disk_.sync(kLogName);
  is_whole_ = true;
}

void CoordinatorLog::write_snapshot(const ClusterMap& map) {
  disk_.replace(kSnapshotName, framed(map.whole()));
  disk_.replace(kLogName, {});
  num_appended_ = 0;
  is_whole_ = true;
}

}  // namespace trireme::ps
