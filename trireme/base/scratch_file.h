#pragma once
// A file for data that are too large for memory, of one process and for as long as the object lives. Its
// space is reserved when it is made, so a full disk is found before anything is computed. Its name is removed
// as soon as it is open: it leaves nothing however the process ends, and no other process can remove it. Read
// and written by calls, never mapped, since a mapping answers a broken disk with SIGBUS. Every failure is a
// DataError that names owner, purpose, folder and the system's reason. Thread-safe for ranges that do not
// overlap.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>

#include "trireme/base/file_descriptor.h"

namespace trireme {

class ScratchFile {
 public:
  /// Folder and length of the file, and its name in messages.
  struct Options {
    std::filesystem::path folder;  ///< where it is missing, the nearest above it
    std::string owner;             ///< for messages: "rank 2"
    std::string purpose;           ///< for messages: "the optimizer's state"
    std::uint64_t bytes = 0;
  };

  /// All bytes are 0. Throws DataError: the folder cannot be written to, or has no room, with the
  /// bytes that are needed and those that are free.
  explicit ScratchFile(const Options& options);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Makes the file at least that large. Throws as the constructor does.
  void reserve(std::uint64_t bytes);
  std::uint64_t bytes() const;

  /// Of bytes that are reserved. Throw DataError.
  void read(std::uint64_t offset, std::span<std::byte> into) const;
  void write(std::uint64_t offset, std::span<const std::byte> from);

 private:
  [[noreturn]] void fail(const std::string& operation, int code) const;

  const std::filesystem::path folder_;
  const std::string owner_, purpose_;
  FileDescriptor descriptor_;
  mutable std::mutex mutex_;
  std::uint64_t bytes_ = 0;  ///< under the mutex
};

}  // namespace trireme
