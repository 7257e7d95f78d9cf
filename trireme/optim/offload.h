#pragma once
// Tensors that are outside the memory of the device: optimizer state, and shards of parameters (ZeRO-Offload:
// Ren et al., arXiv 2101.06840; ZeRO-Infinity: Rajbhandari et al., arXiv 2104.07857). They are in files, or
// in the host's memory, pinned, for asynchronous copies of a device. A meta tensor replaces such a tensor. It
// has sizes and no memory, so a use of its values is an error and not a wrong number. Values are read by
// views, or they pass through memory part by part: while one part is computed, the next is read and the one
// before is written, in three buffers. One object per rank. One thread; but fetch() may be called on any, as
// long as the fetched values do not change.

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/io_thread.h"
#include "trireme/batch/copy_stream.h"
#include "trireme/optim/offload_options.h"

namespace trireme::optim {

class KeptBytes;

class Offload {
 public:
  enum class Purpose { kState, kParameters };

  /// Views of offloaded tensors, each without gaps in memory order. On the device they have memory.
  using Part = std::vector<at::Tensor>;

  /// Places of the state, and the amount that is on the device at a time.
  struct Options {
    std::filesystem::path folder;                      ///< of files
    std::string owner;                                 ///< for messages: "rank 2"
    std::int64_t part_bytes = std::int64_t{16} << 20;  ///< of a part, where no single tensor is larger
    c10::Device device = c10::kCPU;                    ///< where parts are worked on
    OffloadPlace state = OffloadPlace::kFiles;         ///< of optimizers that are made with it
    OffloadPlace parameters = OffloadPlace::kFiles;    ///< shards of them
  };

  explicit Offload(Options options);
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// Tensors of these sizes, types and memory formats, all 0, whose space is reserved; those of one purpose
  /// are kept together. Throws DataError: no room.
  std::vector<at::Tensor> make(Purpose purpose, const std::vector<at::Tensor>& like);
  /// Whether it is one of those, or a view of one.
  bool has(const at::Tensor& tensor) const;

  /// A copy of the values of a view, in the memory of the host. Throws DataError; InvalidArgument: not one of
  /// those.
  at::Tensor fetch(const at::Tensor& view) const;
  /// Gives a view these values. Throws as fetch() does.
  void put(const at::Tensor& view, const at::Tensor& values);

  /// Fetches the parts one after the other, updates each in place, and writes them back. All are back when it
  /// returns, or in transfer to the host's memory, for which fetch() and put() wait. Throws DataError, or the
  /// exceptions of `update`. Parts that are not back by then are rejected from then on, until all of the part
  /// is put.
  void in_parts(const std::vector<Part>& parts,
                const std::function<void(std::size_t part, const Part& brought)>& update);

  c10::Device device() const { return options_.device; }
  bool takes_state() const { return options_.state != OffloadPlace::kNone; }
  /// Of a part, as far as single tensors allow.
  std::int64_t part_bytes() const { return options_.part_bytes; }
  /// Bytes of the offloaded tensors, and those of the buffers.
  std::int64_t offloaded_bytes() const;
  std::int64_t buffer_bytes() const;

 private:
  static constexpr std::size_t kNumSlots = 3;

  struct Home {
    at::Tensor holder;  ///< keeps the key of homes_ its own
    KeptBytes* kept;
    std::uint64_t offset;
  };
  /// A run of bytes that are kept, and of a buffer.
  struct Segment {
    KeptBytes* kept;
    std::uint64_t offset;
    std::int64_t place, bytes;
  };
  struct Slot {
    at::Tensor memory;     ///< of the host: buffer of reads from files, and writes
    at::Tensor on_device;  ///< where parts are worked on elsewhere
    std::vector<Segment> segments;
    std::future<void> reading, writing;
    batch::CopyStream::Mark came, left;  ///< copies of tensors in host memory, to and from the device
  };

  const Home& home_of(const at::Tensor& view) const;
  std::uint64_t offset_of(const at::Tensor& view) const;
  void require_valid(const at::Tensor& view) const;
  std::vector<Segment> segments_of(const Part& part) const;
  void make_room(const std::vector<Part>& parts);
  void start_read(Slot& slot, const Part& part);
  void start_write(Slot& slot);
  enum class Way { kToDevice, kFromDevice };
  void copy_kept(Slot& slot, Way way);
  static void copy_buffer(const Slot& slot, Way way);
  bool all_in_memory() const;
  /// The last updates may be in transfer to the host's memory.
  void wait_for_device() const;
  Part brought(const Slot& slot, const Part& part) const;
  void settle() noexcept;
  void pass(const std::vector<Part>& parts,
            const std::function<void(std::size_t part, const Part& brought)>& update);

  const Options options_;
  std::map<Purpose, std::unique_ptr<KeptBytes>> kept_;
  std::map<const void*, Home> homes_;                ///< by the storage of the holder
  mutable std::atomic<bool> device_copies_ = false;  ///< perhaps; not waited for since
  mutable std::mutex mutex_;
  std::map<const void*, std::int64_t> lost_;  ///< under the mutex: bytes that are to be put again, by storage
  std::array<Slot, kNumSlots> slots_;
  batch::CopyStream to_device_,
      from_device_;  ///< copies of tensors in host memory, while the device computes
  IoThread reader_{"offload read"}, writer_{"offload write"};  ///< end before the buffers
};

}  // namespace trireme::optim
