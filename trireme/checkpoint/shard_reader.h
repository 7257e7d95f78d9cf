#pragma once
// Reads boxes of the tensors of a checkpoint, for any boxes of its files. Ranges of the files are copied to
// their place in pieces, so the only additional memory is one buffer of kReadBytes. Names are those of a
// run's state: tensors of the optimizer's files begin with "optimizer/". It verifies nothing; verify before
// (load_shards, verify_checkpoint). Other safetensors files are read in the same way. One thread.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

/// Bytes that are read from a file at a time, and so the reader's memory: 8 MiB.
inline constexpr std::size_t kReadBytes = std::size_t{8} << 20;

class ShardReader {
 public:
  /// One tensor in the files.
  struct Stored {
    std::vector<std::int64_t> sizes;
    at::ScalarType type = at::kFloat;
    /// A box of the tensor, and the file of its values, row-major.
    struct Part {
      std::size_t file = 0;
      Box box;
      std::uint64_t begin = 0;  ///< bytes from the begin of the file
    };
    std::vector<Part> parts;
  };

  /// Reads manifest and headers. Throws DataError; DamagedCheckpoint.
  explicit ShardReader(const std::filesystem::path& checkpoint_folder);
  /// Of safetensors files of any origin in one folder, at least one. Reads their headers. Throws DataError.
  static ShardReader of_files(const std::vector<std::filesystem::path>& files);

  const std::map<std::string, Stored>& tensors() const { return tensors_; }
  /// Throws DataError when there is no such tensor, or one of another shape or type; `what` is its name in
  /// the message.
  void check(const std::string& name, at::IntArrayRef sizes, at::ScalarType type, const char* what) const;
  /// Fills `into` with the elements of `box` of a tensor that is there. Any device, any strides, any type:
  /// numbers are converted to it.
  void read(const std::string& name, const Box& box, const at::Tensor& into);

 private:
  ShardReader() = default;
  void add_file(const std::string& name, const std::string& prefix);
  void check_cover() const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> files_;
  std::map<std::string, Stored> tensors_;
  std::vector<std::byte> buffer_;
};

}  // namespace trireme::checkpoint
