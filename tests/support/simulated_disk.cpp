#include "tests/support/simulated_disk.h"

#include "trireme/base/error.h"

namespace trireme::test {

void SimulatedDisk::crash() {
  for (auto& [name, file] : files_) {
    const std::size_t unsynced = file.bytes.size() - file.num_synced;
    if (unsynced == 0) continue;
    // Any prefix of the unsynced bytes may have been written, with a corrupt last byte.
    const std::size_t kept = random_.below(unsynced + 1);
    file.bytes.resize(file.num_synced + kept);
    if (kept > 0 && random_.below(2) == 0) file.bytes.back() ^= std::byte{0x5a};
    file.num_synced = file.bytes.size();
  }
}

void SimulatedDisk::fail_sometimes(const std::string& name) {
  if (num_failures_ == 0) return;
  --num_failures_;
  throw DataError("cannot write " + name + ": No space left on device");
}

std::vector<std::string> SimulatedDisk::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

std::optional<std::vector<std::byte>> SimulatedDisk::read(const std::string& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) return std::nullopt;
  return found->second.bytes;
}

void SimulatedDisk::append(const std::string& name, const std::vector<std::byte>& bytes) {
  File& file = files_[name];
  file.bytes.insert(file.bytes.end(), bytes.begin(), bytes.end());
}

void SimulatedDisk::sync(const std::string& name) {
  fail_sometimes(name);
  files_[name].num_synced = files_[name].bytes.size();
}

void SimulatedDisk::replace(const std::string& name, const std::vector<std::byte>& bytes) {
  fail_sometimes(name);
  files_[name] = {bytes, bytes.size()};
}

void SimulatedDisk::remove(const std::string& name) { files_.erase(name); }

}  // namespace trireme::test
