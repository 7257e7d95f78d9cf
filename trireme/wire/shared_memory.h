#pragma once
// Memory that several processes of one host map: an anonymous file (memfd_create) that peers open through
// /proc/PID/fd/FD. It has no name, does not count against /dev/shm's size, and is freed with its last process
// however that ends. docs/adr/ has the reasons. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "trireme/base/file_descriptor.h"

namespace trireme::wire {

/// Alignment of parts of shared memory, so that each can be mapped, freed and made private alone.
constexpr std::size_t kPageBytes = 4096;

class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /// Zeroed memory for this and other processes. All of it is reserved here, so that a lack of memory is an
  /// error now and not a SIGBUS later. Throws CommError with the size that is needed.
  static std::shared_ptr<SharedMemory> create(std::size_t bytes);
  /// Zeroed memory for the threads of this process only.
  static std::shared_ptr<SharedMemory> create_in_process(std::size_t bytes);
  /// Maps the memory that `address()` of another process describes; its creator has to be alive and holding
  /// it. Throws CommError with the system's reason, and for anything but memory that create() of this class
  /// has made.
  static std::shared_ptr<SharedMemory> attach(const std::string& address);
  /// The same for memory of create_in_process(). The address is a place in this process's memory: it must
  /// come from this process on a path that no other process can write to.
  static std::shared_ptr<SharedMemory> attach_in_process(const std::string& address);
  /// The same from the parts of an address.
  static std::shared_ptr<SharedMemory> attach(int pid, int descriptor, std::size_t bytes);

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// -1 for memory that this process has not made, or that stays inside it.
  int descriptor() const { return descriptor_.get(); }
  /// Text for attach(): "PID:FD:BYTES"; for attach_in_process(): "in-process:PID:ADDRESS".
  std::string address() const;
  /// Makes the pages of [offset, offset + bytes) private to this process. For memory that create() made.
  /// Their content stays; threads of this process may use them meanwhile.
  void make_private(std::size_t offset, std::size_t bytes);

 private:
  SharedMemory(std::byte* data, std::size_t bytes, FileDescriptor descriptor)
      : data_(data), bytes_(bytes), descriptor_(std::move(descriptor)) {}
  std::byte* data_;
  std::size_t bytes_;
  FileDescriptor descriptor_;
};

}  // namespace trireme::wire
