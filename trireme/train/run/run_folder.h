#pragma once
// The folder of a run's files, and its lock. One process at a time may write them: the one that holds the
// lock. No file of an earlier run of the same name is overwritten or deleted: its folder is renamed to
// NAME.1, NAME.2, ... (the next free number; the highest is the most recent). Readers need no lock. Used by
// rank 0.
//
// The lock is flock(2) on run.lock, which the kernel releases however the process ends. The content of the
// file is for people, and names the start that the run belongs to. Shared file systems pass the lock on to
// other hosts (NFS, Lustre with -o flock, CephFS, GPFS). Mount options may keep locks to their host.

#include <filesystem>
#include <string>

#include "trireme/base/log.h"
#include "trireme/base/open_file.h"

namespace trireme::train {

struct RunFolder {
  std::filesystem::path root;

  /// An absolute path without links, which identifies the folder for processes of this host.
  std::string real_path() const;
  std::filesystem::path lock() const { return root / "run.lock"; }
  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path plan() const { return root / "plan.toml"; }  ///< of parallel.plan = "auto"
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path summary() const { return root / "summary.json"; }
  std::filesystem::path console() const { return root / "console.log"; }
  std::filesystem::path goodput() const { return root / "goodput.json"; }
  std::filesystem::path end() const { return root / "end.json"; }
  std::filesystem::path model() const { return root / "model.safetensors"; }
  std::filesystem::path best() const { return root / "best"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
};

/// Throws InvalidArgument where a folder between `root` and `below`, a path below `root`, is a symbolic link:
/// the folder may be from an untrusted source, or other users may write into it. `root` itself may be one.
void require_no_links(const std::filesystem::path& root, const std::filesystem::path& below);

/// The right to write into a run's folder, while it lives.
class RunLock {
 public:
  /// Locks the folder, and creates it when it is missing. Waits some seconds for a killed process to end.
  /// Then throws InvalidArgument that names the lock's owner. Throws DataError, also if the lock is a
  /// symbolic link. A file system without locks causes a warning.
  RunLock(RunFolder folder, const Log& log);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whether the run in the folder belongs to that start of a world; to none when `start` is empty.
  bool belongs_to(const std::string& start) const { return !start.empty() && start == start_; }
  /// The run of the folder continues. Throws InvalidArgument if a folder of the run is a symbolic link.
  void check_existing() const;
  /// From now on it does.
  void assign_to(const std::string& start);
  /// Renames the folder, where there is anything in it, and makes an empty one of that start. Returns where
  /// the old one went; empty when there was nothing. Throws as the constructor does; InvalidArgument where a
  /// folder was filled by something other than a run.
  std::filesystem::path start_fresh(const std::string& start);

 private:
  void take();
  void lock() const;
  bool is_still_in_place() const;
  void write_holder() const;
  bool has_files() const;
  bool is_of_a_run() const;

  const RunFolder folder_;
  const Log log_;
  std::string start_;
  FileDescriptor file_;
  bool made_ = false;     ///< the folder, which goes again when nothing is written into it
  bool foreign_ = false;  ///< the folder's content is of no run, and the lock is removed again
};

}  // namespace trireme::train
