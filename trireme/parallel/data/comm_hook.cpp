#include "trireme/parallel/data/comm_hook.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/hosts_hook.h"

namespace trireme::parallel {
namespace {

class AllReduceHook : public CommHook {
 public:
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override {
    sent_bytes_ += all_reduce_bytes(group, bucket.flat);
    const auto op = scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum;
    return [pending = group.all_reduce_async(bucket.flat, op)]() mutable { pending.wait(); };
  }
  std::int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  std::int64_t sent_bytes_ = 0;
};

/// Sends 16 instead of 32 or 64 bits per value. Divides by the number of ranks before the conversion, so that
/// the sum of many ranks stays in fp16's range.
class HalfHook : public CommHook {
 public:
  explicit HalfHook(at::ScalarType dtype) : dtype_(dtype) {}

  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override {
    at::Tensor half = part_for(group, bucket.flat);
    sent_bytes_ += all_reduce_bytes(group, half);
    if (scale == ReduceScale::kMean) bucket.flat.div_(group.size());
    half.copy_(bucket.flat);
    return [flat = bucket.flat, half, pending = group.all_reduce_async(half)]() mutable {
      pending.wait();
      flat.copy_(half);
    };
  }
  std::int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  /// As many elements as the memory of the buckets, for any order of the buckets in it.
  struct Buffer {
    c10::weak_intrusive_ptr<c10::StorageImpl> of;
    at::Tensor half;
  };

  at::Tensor part_for(const comm::Group& group, const at::Tensor& bucket) {
    return buffer_for(group, bucket).narrow(0, bucket.storage_offset(), bucket.numel());
  }

  const at::Tensor& buffer_for(const comm::Group& group, const at::Tensor& bucket) {
    std::erase_if(buffers_, [](const Buffer& buffer) { return buffer.of.expired(); });
    const auto* storage = bucket.storage().unsafeGetStorageImpl();
    for (const Buffer& buffer : buffers_) {
      if (buffer.of._unsafe_get_target() == storage) return buffer.half;
    }
    const auto numel = static_cast<std::int64_t>(storage->nbytes() / bucket.element_size());
    const at::Tensor half = group.allocate(numel, bucket.options().dtype(dtype_));
    buffers_.push_back({bucket.storage().getWeakStorageImpl(), half});
    return buffers_.back().half;
  }

  at::ScalarType dtype_;
  std::int64_t sent_bytes_ = 0;
  std::vector<Buffer> buffers_;
};

using Made = std::shared_ptr<CommHook>;

struct Row {
  std::string name;
  Made (*make)(const CompressionOptions&);
  GradientRounding rounding;
};

constexpr GradientRounding kLossy = {.is_lossy = true};

/// Codecs without a row here follow the number formats, in the order of their table (compress/codec.cpp).
std::vector<Row> make_hook_rows() {
  // bf16 has 8 significant bits and the range of f32; fp16 has 11, and its smallest number is 2^-24.
  std::vector<Row> rows = {
      {"none", [](const CompressionOptions&) { return Made(std::make_shared<AllReduceHook>()); }, {}},
      {"bf16",
       [](const CompressionOptions&) { return Made(std::make_shared<HalfHook>(at::kBFloat16)); },
       {.relative = 0x1p-8}},
      {"fp16",
       [](const CompressionOptions&) { return Made(std::make_shared<HalfHook>(at::kHalf)); },
       {.relative = 0x1p-11, .absolute = 0x1p-25}},
  };
  for (const std::string& codec : compress::codec_names()) {
    if (std::ranges::find(rows, codec, &Row::name) == rows.end())
      rows.push_back({codec, make_codec_hook, kLossy});
  }
  rows.push_back({"dgc", make_codec_hook, kLossy});
  rows.push_back({"power-sgd", make_power_sgd_hook, kLossy});
  rows.push_back({"one-bit", make_one_bit_hook, kLossy});
  return rows;
}

const std::vector<Row>& hook_rows() {
  static const std::vector<Row> kRows = make_hook_rows();
  return kRows;
}

const Row& find_hook(const std::string& name) {
  const auto row = std::ranges::find(hook_rows(), name, &Row::name);
  require(row != hook_rows().end(), "there is no gradient compression '", name, "'",
          suggest(name, comm_hook_names()));
  return *row;
}

}  // namespace

std::vector<std::string> comm_hook_names() {
  std::vector<std::string> names;
  for (const Row& row : hook_rows()) names.push_back(row.name);
  return names;
}

GradientRounding gradient_rounding(const std::string& name) { return find_hook(name).rounding; }

bool has_own_momentum(const std::string& name) { return find_hook(name).name == "dgc"; }

bool compresses_momentum(const std::string& name) { return find_hook(name).name == "one-bit"; }

std::shared_ptr<CommHook> make_comm_hook(const CompressionOptions& options) {
  const Row& row = find_hook(options.name);
  const CompressionScope scope = compression_scope_of(options.scope);
  require(options.clip_norm == 0 || has_own_momentum(options.name), "compression \"", options.name,
          "\" does not clip what ranks hand in; found a clip_norm of ", options.clip_norm,
          ": that is for \"dgc\"");
  const Made hook = row.rounding.is_lossy ? make_hosts_hook(row.make(options), scope) : row.make(options);
  return options.clip_norm == 0 ? hook : make_clipping_hook(hook, options.clip_norm);
}

std::shared_ptr<CommHook> make_comm_hook(const std::string& name) {
  CompressionOptions options;
  options.name = name;
  return make_comm_hook(options);
}

}  // namespace trireme::parallel
