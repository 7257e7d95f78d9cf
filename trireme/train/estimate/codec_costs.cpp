#include "trireme/train/estimate/internal/codec_costs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <array>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/median.h"
#include "trireme/train/parts/internal/compression.h"

namespace trireme::train {
namespace {

constexpr int kExchanges = 5;
constexpr std::int64_t kRow = 1024, kFewRows = 64, kManyRows = 2048;  // 256 KiB, 8 MiB
/// One of each kind: half the bits, a quarter of them, and matrices of low rank.
constexpr std::array kOffered = {"bf16", "int8", "power-sgd"};

parallel::GradientBucket bucket_of(const optim::NamedTensors& parameters, const comm::Group& group) {
  std::int64_t numel = 0, begin = 0;
  for (const auto& [name, parameter] : parameters) numel += parameter.numel();
  parallel::GradientBucket bucket{
      .flat = group.allocate(numel, parameters.front().second.options()), .flag = {}, .gradients = {}};
  for (const auto& [name, parameter] : parameters) {
    bucket.gradients.emplace_back(name,
                                  bucket.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  return bucket;
}

double seconds_of_rows(const parallel::CompressionOptions& options, std::int64_t rows,
                       const comm::Group& group, c10::Device device) {
  const at::Tensor gradient = at::ones({rows, kRow}, at::TensorOptions(at::kFloat).device(device));
  return exchange_s(options, {{"weight", gradient}}, group);
}

}  // namespace

double exchange_s(const parallel::CompressionOptions& options, const optim::NamedTensors& gradients,
                  comm::Group group) {
  const at::NoGradGuard no_grad;
  const auto hook = parallel::make_comm_hook(options);
  hook->prepare(group, gradients);
  parallel::GradientBucket bucket = bucket_of(gradients, hook->memory_of(group));
  std::vector<double> seconds;
  for (int exchange = 0; exchange <= kExchanges; ++exchange) {
    for (std::size_t i = 0; i < gradients.size(); ++i)
      at::Tensor(bucket.gradients[i].second).copy_(gradients[i].second);
    group.barrier();
    const double began_s = now_s();
    hook->start(group, bucket, parallel::ReduceScale::kMean)();
    bucket.flat.narrow(0, 0, 1).cpu();  // waits for a device
    if (exchange > 0) seconds.push_back(now_s() - began_s);
  }
  return median(std::move(seconds));
}

std::vector<CodecCost> measure_codecs(const RunConfig& config, const comm::Group& group, c10::Device device) {
  std::vector<CodecCost> costs;
  if (group.size() == 1) return costs;
  const bool is_chosen = config.parallel.compression != "none";
  std::vector<std::string> codecs(kOffered.begin(), kOffered.end());
  if (is_chosen) codecs = {config.parallel.compression};
  for (const std::string& codec : codecs) {
    RunConfig with = config;
    // What it sends needs an optimizer's momentum, and has the size of signs.
    with.parallel.compression = parallel::compresses_momentum(codec) ? "sign" : codec;
    parallel::CompressionOptions options = compression_options(with);
    options.warmup_steps = 0;
    try {
      const double few_s = seconds_of_rows(options, kFewRows, group, device),
                   many_s = seconds_of_rows(options, kManyRows, group, device);
      costs.push_back(
          {.codec = codec,
           .all_reduce = line_through(4.0 * kRow * kFewRows, few_s, 4.0 * kRow * kManyRows, many_s)});
    } catch (const InvalidArgument&) {  // on all ranks
    }
  }
  return costs;
}

}  // namespace trireme::train
