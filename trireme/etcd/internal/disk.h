#pragma once
// A leader's Disk in etcd. A file is a head, PREFIX/files/NAME, and parts,
// PREFIX/parts/NAME/GENERATION/NUMBER. A part has at most a mebibyte, since a request to etcd holds 1.5.
// Readers see the parts that the head names. The head changes in one transaction, so a file is the old one or
// the new one. Every write names the leader's key and the earlier head. So a leader that was deposed writes
// nothing, and a request that comes late, or twice, has no effect. One thread.

#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/internal/term.h"
#include "trireme/wire/node.h"

namespace trireme::etcd {

/// For now: etcd did not answer, or this process does not lead any more. Others may be asked, or later.
class NotNow : public DataError {
 public:
  using DataError::DataError;
};

class Disk final : public wire::Disk {
 public:
  Disk(Client client, std::string prefix, std::shared_ptr<Term> term);

  std::vector<std::string> names() const override;
  /// Throws NotNow, and DataError where parts of a file are missing.
  std::optional<std::vector<std::byte>> read(const std::string& name) const override;
  void append(const std::string& name, const std::vector<std::byte>& bytes) override;
  /// Throws NotNow, after which the file has to be replaced: whether it was written is not known.
  void sync(const std::string& name) override;
  void replace(const std::string& name, const std::vector<std::byte>& bytes) override;
  void remove(const std::string& name) override;

 private:
  struct Head {
    std::string generation;
    std::int64_t parts = 0, bytes = 0;
    std::string write;  ///< which made it so
  };
  struct File {
    Head head;
    Revision modified = 0;         ///< of the head; 0: there is none
    bool known = false;            ///< whether the two above equal etcd's, unless a late request came
    bool damaged = false;          ///< a write has failed
    std::vector<std::byte> added;  ///< and not synced
  };

  static Head parsed(const std::string& key, const std::string& value);
  static std::string text_of(const Head& head);
  std::string head_key(const std::string& name) const;
  std::string parts_key(const std::string& name) const;
  std::string part_key(const std::string& name, const Head& head, std::int64_t part) const;
  void take_head(File& file, const std::string& name, const std::optional<KeyValue>& pair);
  Outcome commit(const Transaction& transaction);
  [[noreturn]] void deposed();
  /// After the file's content, or in place of it.
  enum class How : std::uint8_t { kAppend, kReplace };
  void write(const std::string& name, File& file, std::span<const std::byte> bytes, How how);

  mutable Client client_;
  const std::string prefix_;
  const std::shared_ptr<Term> term_;
  std::map<std::string, File> files_;
};

}  // namespace trireme::etcd
