#include "trireme/checkpoint/shard_reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trireme/base/disk_use.h"
#include "trireme/base/error.h"
#include "trireme/base/open_file.h"
#include "trireme/base/printable.h"
#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/checkpoint/internal/boxes_in_file.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/internal/tensor_bytes.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

/// An open file with random access.
class RandomReader {
 public:
  explicit RandomReader(const fs::path& path) : path_(path), descriptor_(open_to_read(path)) {
    if (!descriptor_.is_open())
      throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
  }

  void read(std::uint64_t at, std::byte* target, std::size_t count) const {
    while (count > 0) {
      const ssize_t got = ::pread(descriptor_.get(), target, count, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw DataError(text("cannot read ", count, " bytes at ", at, " of ", path_.string(), ": ",
                             got < 0 ? std::strerror(errno) : "the file ends there"));
      }
      count_disk_read(DiskUse::kCheckpoints, static_cast<std::uint64_t>(got));
      at += static_cast<std::uint64_t>(got);
      target += got;
      count -= static_cast<std::size_t>(got);
    }
  }
  const fs::path& path() const { return path_; }

 private:
  const fs::path& path_;
  FileDescriptor descriptor_;
};

void check_bools(at::ScalarType type, std::span<const std::byte> bytes, const fs::path& path) {
  if (type != at::kBool) return;
  if (const auto bad = first_not_bool(bytes)) {
    throw DataError(
        text(path.string(), ": a bool is ", static_cast<int>(bytes[static_cast<std::size_t>(*bad)])));
  }
}

using Part = ShardReader::Stored::Part;

/// Whether two parts have an element in common. Parts of a mesh form rows of few parts each. nullopt: the
/// layout needs too many comparisons.
std::optional<bool> have_common_elements(const std::vector<Part>& parts) {
  constexpr std::size_t kMaxComparisons = 20'000'000;
  const auto begin = [](const Part* part) { return part->box.offsets[0]; };
  std::vector<const Part*> in_order, reaching;
  for (const Part& part : parts) {
    if (part.box.numel() > 0) in_order.push_back(&part);
  }
  std::ranges::sort(in_order, {}, begin);
  std::size_t comparisons = 0;
  for (const Part* part : in_order) {
    comparisons += reaching.size();
    if (comparisons > kMaxComparisons) return std::nullopt;
    std::erase_if(reaching,
                  [&](const Part* other) { return begin(other) + other->box.sizes[0] <= begin(part); });
    for (const Part* other : reaching) {
      if (overlap(other->box, part->box)) return true;
    }
    reaching.push_back(part);
  }
  return false;
}

/// Copies a box of one stored part into its place.
class BoxCopy {
 public:
  BoxCopy(const RandomReader& file, at::ScalarType type, const Box& stored, const Box& wanted,
          std::span<std::byte> buffer)
      : file_(file), type_(type), stored_(stored), wanted_(wanted), buffer_(buffer) {}

  void run(std::uint64_t begin, const at::Tensor& into) const { descend(0, begin, into); }

 private:
  std::size_t dims() const { return stored_.sizes.size(); }
  /// Whether bytes of the file can be read directly into the tensor.
  bool lies_flat(const at::Tensor& tensor) const {
    return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
           tensor.scalar_type() == type_;
  }
  /// Whether all stored elements at an index of `dim` are wanted.
  bool wants_whole_rows(std::size_t dim) const {
    return std::equal(stored_.sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1, stored_.sizes.end(),
                      wanted_.sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
  }

  /// `begin`: offset in the file of the stored elements with the indices chosen so far. `into`: the wanted
  /// ones.
  void descend(std::size_t dim, std::uint64_t begin, const at::Tensor& into) const {
    if (dim == dims()) return read_flat(begin, into.view(-1));
    std::uint64_t row = c10::elementSize(type_);
    for (std::size_t inner = dim + 1; inner < dims(); ++inner)
      row *= static_cast<std::uint64_t>(stored_.sizes[inner]);
    begin += static_cast<std::uint64_t>(wanted_.offsets[dim] - stored_.offsets[dim]) * row;
    if (wants_whole_rows(dim) && lies_flat(into)) return read_flat(begin, into);
    const auto rows = static_cast<std::int64_t>(buffer_.size() / row);
    for (std::int64_t i = 0; i < wanted_.sizes[dim]; i += std::max<std::int64_t>(rows, 1)) {
      const std::uint64_t at = begin + static_cast<std::uint64_t>(i) * row;
      if (rows == 0) {
        descend(dim + 1, at, into.select(0, i));
      } else {
        read_rows(dim, at, row, into.narrow(0, i, std::min(rows, wanted_.sizes[dim] - i)));
      }
    }
  }

  void read_flat(std::uint64_t begin, const at::Tensor& into) const {
    if (!lies_flat(into)) {
      const std::span<std::byte> bytes =
          buffer_.first(static_cast<std::size_t>(into.numel()) * c10::elementSize(type_));
      file_.read(begin, bytes.data(), bytes.size());
      check_bools(type_, bytes, file_.path());
      at::Tensor(into).copy_(at::from_blob(bytes.data(), into.sizes(), at::TensorOptions(type_)));
      return;
    }
    auto* target = static_cast<std::byte*>(into.mutable_data_ptr());
    file_.read(begin, target, into.nbytes());
    check_bools(type_, {target, into.nbytes()}, file_.path());
  }

  /// Reads whole rows of the part into the buffer, then copies the wanted columns.
  void read_rows(std::size_t dim, std::uint64_t begin, std::uint64_t row, const at::Tensor& into) const {
    const auto bytes = buffer_.first(static_cast<std::size_t>(row) * static_cast<std::size_t>(into.size(0)));
    file_.read(begin, bytes.data(), bytes.size());
    check_bools(type_, bytes, file_.path());
    std::vector<std::int64_t> sizes(stored_.sizes.begin() + static_cast<std::ptrdiff_t>(dim),
                                    stored_.sizes.end());
    sizes[0] = into.size(0);
    at::Tensor rows = at::from_blob(bytes.data(), sizes, at::TensorOptions(type_));
    for (std::size_t inner = dim + 1; inner < dims(); ++inner) {
      rows = rows.narrow(static_cast<std::int64_t>(inner - dim),
                         wanted_.offsets[inner] - stored_.offsets[inner], wanted_.sizes[inner]);
    }
    at::Tensor(into).copy_(rows);
  }

  const RandomReader& file_;
  const at::ScalarType type_;
  const Box &stored_, &wanted_;
  const std::span<std::byte> buffer_;
};

}  // namespace

ShardReader::ShardReader(const fs::path& checkpoint_folder) : folder_(checkpoint_folder) {
  for (const FileRecord& record : read_manifest(folder_).files) {
    if (const std::optional<FileKind> kind = kind_of(record.name); kind && *kind != FileKind::kConfig)
      add_file(record.name, *kind == FileKind::kOptimizer ? kOptimizerPrefix : "");
  }
  check_cover();
}

ShardReader ShardReader::of_files(const std::vector<fs::path>& files) {
  ShardReader reader;
  reader.folder_ = files.at(0).parent_path();
  for (const fs::path& path : files) reader.add_file(path.filename().string(), "");
  reader.check_cover();
  return reader;
}

void ShardReader::add_file(const std::string& name, const std::string& prefix) {
  const fs::path path = folder_ / name;
  const SafetensorsLayout layout = layout_of_safetensors(path);
  const std::vector<StoredBox> boxes = stored_boxes(layout.header, path.string());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const HeaderEntry& entry = layout.header.entries[i];
    // Ranks exchange names as lines of text.
    if (std::ranges::any_of(boxes[i].name, [](unsigned char letter) { return letter < ' '; }))
      throw DataError(text(path.string(), ": the name of tensor '", printable(boxes[i].name),
                           "' has control characters; expected printable ones"));
    const Stored fresh{.sizes = boxes[i].global_sizes, .type = entry.type, .parts = {}};
    Stored& stored = tensors_.try_emplace(prefix + boxes[i].name, fresh).first->second;
    if (stored.sizes != fresh.sizes || stored.type != fresh.type)
      throw DataError(text(path.string(), ": '", printable(boxes[i].name),
                           "' has another shape or type in another file"));
    stored.parts.push_back(
        {.file = files_.size(), .box = boxes[i].box, .begin = layout.data_begin + entry.begin});
  }
  files_.push_back(path);
}

/// Every element is stored exactly once, so a tensor that is read has no undefined elements.
void ShardReader::check_cover() const {
  for (const auto& [name, stored] : tensors_) {
    std::int64_t found = 0;
    for (const Stored::Part& part : stored.parts) found += part.box.numel();
    const std::int64_t numel = whole_box(stored.sizes).numel();
    if (found != numel) {
      throw DataError(text("the checkpoint ", folder_.string(), " holds ", found, " of the ", numel,
                           " elements of '", printable(name), "'"));
    }
    if (stored.parts.size() < 2 || stored.sizes.empty()) continue;
    const std::optional<bool> common = have_common_elements(stored.parts);
    if (!common || *common) {
      throw DataError(text("the checkpoint ", folder_.string(), " holds elements of '", printable(name), "' ",
                           common ? "twice, and others not at all" : "in too many parts"));
    }
  }
}

void ShardReader::check(const std::string& name, at::IntArrayRef sizes, at::ScalarType type,
                        const char* what) const {
  const auto stored = tensors_.find(name);
  if (stored == tensors_.end()) throw DataError(text("the checkpoint has no ", what, " '", name, "'"));
  if (sizes != at::IntArrayRef(stored->second.sizes) || type != stored->second.type) {
    throw DataError(text("the checkpoint's ", what, " '", name, "' has shape ",
                         at::IntArrayRef(stored->second.sizes), " and type ", stored->second.type,
                         ", this run's ", sizes, " and ", type));
  }
}

void ShardReader::read(const std::string& name, const Box& box, const at::Tensor& into) {
  const at::NoGradGuard no_grad;
  const Stored& stored = tensors_.at(name);
  if (buffer_.empty()) buffer_.resize(kReadBytes);
  for (const Stored::Part& part : stored.parts) {
    const std::optional<Box> common = overlap(part.box, box);
    if (!common) continue;
    const RandomReader file(files_[part.file]);
    BoxCopy(file, stored.type, part.box, *common, buffer_).run(part.begin, view_of(into, box, *common));
  }
}

}  // namespace trireme::checkpoint
