#pragma once
// Result of make_shard_hook(): the encoded gradients, their random numbers, residuals so far, and the number
// of sent bytes. State is stored by the names of parameters, for whole parameters. So it depends neither on
// buckets nor on owners of elements. If gradients are summed inside hosts before they are encoded, a host's
// residual is kept range by range, by the rank that encodes the range. For compressions of whole gradients
// the hook of replicas does all of it. One thread.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/host_groups.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

class ShardingHook final : public CommHook {
 public:
  ShardingHook(const CompressionOptions& options, const std::string& weights);

  // Of parameters that stay whole, or whose gradients do until they are reduced.
  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) override {
    whole_->prepare(group, parameters);
  }
  void set_gradient_scale(double scale) override {
    whole_->set_gradient_scale(scale);
    gradient_scale_ = scale;
  }
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override {
    return whole_->start(group, bucket, scale);
  }

  HookState state() override;
  void restored() override;
  std::string describe() const override;
  std::int64_t sent_bytes() const override { return sent_bytes_ + whole_->sent_bytes(); }

  /// Whether gradients go through start(), bucket by bucket, and each rank takes its part of the result.
  bool reduces_whole_gradients() const { return reduces_whole_; }
  /// Whether such a parameter is large enough to be encoded, if any is.
  bool takes(const at::Tensor& parameter) const {
    return parameter.dim() > 1 && parameter.numel() >= options_.min_numel;
  }
  /// Whether a reduction sends again when it is waited for.
  bool goes_in_stages() const { return reduces_whole_ || hosts_.has_value(); }
  /// Whether gradients of any parameter are encoded run by run.
  bool encodes_runs() const { return codec_ != nullptr; }
  /// In which weights are gathered; null: as they are.
  const compress::Codec* weights() const { return weights_; }
  const compress::Codec& codec() const { return *codec_; }
  /// Divisor of gradients before they are encoded, and factor of the results.
  double gradient_scale() const { return gradient_scale_; }
  /// A parameter whose gradients will be. Throws InvalidArgument: of another type than f32, known already.
  void add(const std::string& name, const at::Tensor& parameter);
  /// By which hosts gradients of the group's ranks go; null: ranks encode. Collective the first time. Throws
  /// InvalidArgument where they are to go by hosts that have different numbers of ranks.
  const comm::HostGroups* hosts_of(const comm::Group& group);
  /// Elements of a parameter that the ranks at one place of their hosts encode.
  struct RunOfPlace {
    int place;
    std::int64_t begin, numel;
  };
  void add_run(const std::string& name, RunOfPlace run) { kept_.at(name).runs.push_back(run); }
  /// How this rank's next gradient of it is encoded.
  compress::Codec::Options next(const std::string& name, int rank);
  /// Residual so far, which is added to the gradients before they are encoded; undefined: there is none.
  at::Tensor residual(const std::string& name) const { return kept_.at(name).residual; }
  /// That so many bytes have been sent.
  void count(std::int64_t bytes) { sent_bytes_ += bytes; }

 private:
  struct Kept {
    at::Tensor draws;  ///< its reductions so far
    at::Tensor residual;
    std::vector<RunOfPlace> runs;  ///< where gradients go by hosts
  };
  double fraction_at(std::int64_t reduction) const;

  const CompressionOptions options_;
  const bool reduces_whole_;
  const compress::Codec* const codec_;  ///< of runs; null: they go as they are, or whole ones are compressed
  const compress::Codec* const weights_;  ///< the same
  const std::string weights_name_;
  const std::shared_ptr<CommHook> whole_;
  double gradient_scale_ = 1;
  std::string group_name_;                 ///< whose gradients these are, once it is known
  std::optional<comm::HostGroups> hosts_;  ///< none: ranks encode
  std::map<std::string, Kept> kept_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace trireme::parallel
