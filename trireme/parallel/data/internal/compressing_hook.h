#pragma once
// The common part of all gradient compressions. Each large gradient with several dims is compressed on its
// own, independent of bucketing; small ones, vectors and the flag are sent uncompressed. Gradients are f32;
// those of a device are compressed there, and their residuals stay there. A gradient that is not finite is
// never hidden: it ends as NaN on all ranks, and earlier residuals are unchanged. Scaled gradients are
// divided by their scale before, and results are multiplied by it. One thread.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/internal/flag.h"
#include "trireme/parallel/data/internal/residual_keeper.h"

namespace trireme::compress {
class Codec;
}

namespace trireme::parallel {

struct Summand;

/// A gradient that is compressed.
struct CompressedPart {
  std::string name;
  at::Tensor values;      ///< flat, in the order of the gradient's memory; the result belongs there
  std::int64_t rows = 1;  ///< size of the dim that is outermost in that memory
  Flag finite = true;     ///< this rank's
};

class CompressingHook : public CommHook, public ResidualKeeper {
 public:
  explicit CompressingHook(const CompressionOptions& options);

  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) final;
  void set_gradient_scale(double scale) final;
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) final;
  std::string describe() const override;
  std::int64_t sent_bytes() const final { return sent_bytes_; }
  void release(GradientBucket& bucket, double factor) final;

 protected:
  const CompressionOptions& options() const { return options_; }
  /// Whether a matrix of that size is compressed at all.
  virtual bool takes(std::int64_t rows, std::int64_t columns) const = 0;
  /// A compressed parameter, and the place of its gradients.
  struct Taken {
    std::string name;
    std::int64_t rows, columns;
    at::TensorOptions like;  ///< f32, on its device
  };
  /// Called once, before any gradient of it comes.
  virtual void add(const comm::Group& group, const Taken& parameter) = 0;
  /// Whether its next gradient is compressed, and does not go as it is for once; on all ranks alike.
  virtual bool is_due(const std::string& /*name*/) const { return true; }
  /// A vector of this rank that belongs to its next gradient, from element `begin` on.
  struct Residual {
    at::Tensor values;  ///< flat
    std::int64_t begin = 0;
  };
  /// What was left out of a compressed one.
  virtual std::vector<Residual> residuals_of(const std::string& /*name*/) { return {}; }
  /// The same of an uncompressed one; and the handling of its reduced gradient, on all ranks alike.
  virtual void add_uncompressed(const std::string& /*name*/, const at::Tensor& /*parameter*/) {}
  virtual void finish_uncompressed(const std::string& /*name*/, const at::Tensor& /*values*/) {}
  /// As CommHook::start(), of all compressed gradients of a bucket.
  virtual std::function<void()> reduce(comm::Group& group, std::vector<CompressedPart> parts,
                                       ReduceScale scale) = 0;

  /// Room in the group's memory, the same one for the same `use` as long as the size stays.
  at::Tensor room(const comm::Group& group, const std::string& use, std::int64_t numel,
                  const at::TensorOptions& options);
  /// Of bytes, when their number changes from step to step: the same memory as long as it suffices and is not
  /// far too large.
  at::Tensor room_for(const comm::Group& group, const std::string& use, std::int64_t bytes,
                      c10::Device device);
  /// Starts encoded sums (encoded_sum.h) in rooms of this hook, and counts them.
  std::function<std::vector<Summand>()> start_sums(comm::Group& group, const compress::Codec& codec,
                                                   std::vector<Summand> summands);
  /// That so many bytes have been sent.
  void count(std::int64_t bytes) { sent_bytes_ += bytes; }

 private:
  bool is_taken(const at::Tensor& gradient) const;

  const CompressionOptions options_;
  double gradient_scale_ = 1;
  std::set<std::string> prepared_;  ///< parameters
  std::map<std::string, at::Tensor> rooms_;
  std::int64_t sent_bytes_ = 0;
};

/// Throws InvalidArgument for a scale that is not above 0, or not finite.
void require_gradient_scale(double scale);
/// Throws InvalidArgument, with the name of the first that has gradients of another type.
void require_f32(const std::string& compression, const optim::NamedTensors& parameters);
/// The message where a hook has a parameter of that name already.
std::string kept_already(const std::string& compression, const std::string& parameter);

/// Bytes that a rank of a ring sends in an all-reduce, and in an all-gather of which this is its part.
std::int64_t all_reduce_bytes(const comm::Group& group, const at::Tensor& tensor);
std::int64_t all_gather_bytes(const comm::Group& group, const at::Tensor& mine);

// One maker per kind.
std::shared_ptr<CommHook> make_codec_hook(const CompressionOptions& options);
std::shared_ptr<CommHook> make_power_sgd_hook(const CompressionOptions& options);
std::shared_ptr<CommHook> make_one_bit_hook(const CompressionOptions& options);

/// Around another hook: each rank's gradients are clipped before that gets them, to a share of `norm`. Throws
/// InvalidArgument for a norm that is not above 0.
std::shared_ptr<CommHook> make_clipping_hook(std::shared_ptr<CommHook> next, double norm);

}  // namespace trireme::parallel
