#pragma once
// A disk in memory. At a crash, unsynced appended bytes are lost or torn, as its random numbers say. Synced
// bytes are kept. One thread.

#include <map>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/wire/node.h"

namespace trireme::test {

class SimulatedDisk final : public wire::Disk {
 public:
  explicit SimulatedDisk(Random random) : random_(random) {}

  void crash();
  /// The next `count` syncs and replacements fail as on a full disk.
  void fail_next(int count) { num_failures_ = count; }

  std::vector<std::string> names() const override;
  std::optional<std::vector<std::byte>> read(const std::string& name) const override;
  void append(const std::string& name, const std::vector<std::byte>& bytes) override;
  void sync(const std::string& name) override;
  void replace(const std::string& name, const std::vector<std::byte>& bytes) override;
  void remove(const std::string& name) override;

 private:
  struct File {
    std::vector<std::byte> bytes;
    std::size_t num_synced = 0;
  };
  void fail_sometimes(const std::string& name);

  Random random_;
  int num_failures_ = 0;
  std::map<std::string, File> files_;
};

}  // namespace trireme::test
