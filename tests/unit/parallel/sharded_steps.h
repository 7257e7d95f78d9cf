#pragma once
// Steps of sharded ranks with known gradients: the reduced gradients, the residuals, and the weights that the
// ranks compute with.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/parallel/stage_layers.h"
#include "tests/unit/parallel/steps_of_ranks.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/shard_hook.h"

namespace trireme::test {

using comm::Context;
using parallel::CommHook;
using parallel::Piece;
using parallel::Pipeline;
using parallel::ZeroStage;

/// p0 is a vector, p1 is small, p4 is frozen. No number of ranks divides the others.
inline const std::vector<std::vector<std::int64_t>> kShapes = {
    {60}, {4, 5}, {24, 3, 5, 5}, {61, 101}, {64, 64}};
inline const std::vector<std::string> kPlain = {"p0", "p1"}, kEncoded = {"p2", "p3"};

inline const std::vector<std::int64_t>& shape_of(const std::string& name) {
  return kShapes[static_cast<std::size_t>(name.back() - '0')];
}

/// Arbitrary numbers.
inline at::Tensor gradient_of(const std::string& name, int rank, int step, int microbatch) {
  return Parameters::gradient(name, shape_of(name), rank, 10 * step + microbatch);
}

inline CompressionOptions shard_options(const std::string& name) {
  return {.name = name, .fraction = 0.05, .rank = 2, .seed = 3};
}

/// The elements of a contiguous f32 tensor.
inline std::span<float> floats_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

struct RunOfRank {
  std::int64_t begin = 0, numel = 0;
};

/// The joined reductions of several ranks. With replicas (kNone) each rank has all of it.
struct Reduced {
  std::vector<ByName> steps;
  std::map<std::string, std::vector<RunOfRank>> runs;  ///< by parameter and rank
  std::vector<HookState> kept;                         ///< by rank
  std::vector<std::int64_t> sent;                      ///< by rank
};

struct ShardSetting {
  int ranks = 2;
  ZeroStage stage = ZeroStage::kGradients;
  const char* backend = "gloo";
  int first = 0, end = 3;
  int microbatches = 1;
  ReduceScale scale = ReduceScale::kSum;
  double bucket_mib = 25;
  const Reduced* go_on_from = nullptr;
  int abandoned = -1;  ///< a step that an exception ends before the first reduction; it is repeated
  /// Changes a gradient that a rank contributes.
  std::function<void(const std::string& name, int rank, int step, at::Tensor& gradient)> spoil = nullptr;
  Hosts hosts = {};              ///< host id of each rank; empty: all ranks on one host
  const char* weights = "none";  ///< compression of gathered weights
  float rate = 0;                ///< learning rate of plain SGD steps
  /// Gets the weights with which a rank computes in a step.
  std::function<void(int rank, int step, const std::vector<at::Tensor>& parameters)> sees = nullptr;
};

/// Layers whose gradients are those of gradient_of().
struct KnownLayers {
  const int rank;
  const ShardSetting setting;
  int step = 0, microbatch = 0;

  std::vector<model::Layer> make() {
    const Own own{
        .forward = [this](const at::Tensor& x,
                          const std::vector<at::Tensor>& parameters) { return forward(x, parameters); },
        .shapes = kShapes};
    std::vector<model::Layer> result = own();
    for (auto& [name, parameter] : result[0].parameters) {
      if (name == "p4") parameter.set_requires_grad(false);
    }
    return result;
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<at::Tensor>& parameters) {
    if (setting.sees) setting.sees(rank, step, parameters);
    at::Tensor sum = x.sum().reshape({1});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = text("p", i);
      at::Tensor gradient = gradient_of(name, rank, step, microbatch);
      if (setting.spoil) setting.spoil(name, rank, step, gradient);
      sum = sum + (parameters[i] * gradient).sum();
    }
    ++microbatch;
    return sum;
  }
};

/// A pipeline of these layers.
class KnownStage {
 public:
  KnownStage(Context& context, const CompressionOptions& options, const ShardSetting& setting)
      : known_{.rank = context.rank(), .setting = setting},
        hook_(setting.stage == ZeroStage::kNone ? parallel::make_comm_hook(options)
                                                : parallel::make_shard_hook(options, setting.weights)),
        pipe_(context, {.pipeline = context.self(), .data = context.world()}, known_.make(),
              {.num_microbatches = 1,
               .program = schedule::data_parallel(setting.microbatches),
               .data_parallel = {.bucket_mib = setting.bucket_mib,
                                 .first_bucket_mib = setting.bucket_mib,
                                 .scale = setting.scale,
                                 .hook = hook_},
               .zero = {.stage = setting.stage}}) {}

  void step(int number, bool fails = false) {
    known_.step = number;
    known_.microbatch = 0;
    pipe_.zero_grad();
    const auto loss = [fails](const at::Tensor& output, const at::Tensor&) {
      require(!fails, "a loss of one's own says no");
      return output.sum();
    };
    const at::Tensor rows = at::zeros({known_.setting.microbatches, 1});
    pipe_.step(rows, rows, loss);
    const at::NoGradGuard no_grad;
    if (known_.setting.rate == 0) return;
    for (const auto& [name, piece] : pipe_.parameters()) {
      if (piece.grad().defined()) at::Tensor(piece).sub_(piece.grad() * known_.setting.rate);
    }
  }
  CommHook& hook() { return *hook_; }
  Pipeline& pipe() { return pipe_; }

 private:
  KnownLayers known_;
  const std::shared_ptr<CommHook> hook_;
  Pipeline pipe_;
};

inline Reduced reduce_in_shards(const CompressionOptions& options, const ShardSetting& setting = {}) {
  Reduced all{.steps = std::vector<ByName>(static_cast<std::size_t>(setting.end - setting.first)),
              .runs = {},
              .kept = std::vector<HookState>(static_cast<std::size_t>(setting.ranks)),
              .sent = std::vector<std::int64_t>(static_cast<std::size_t>(setting.ranks))};
  for (const auto* names : {&kPlain, &kEncoded}) {
    for (const std::string& name : *names) {
      all.runs[name].resize(static_cast<std::size_t>(setting.ranks));
      for (ByName& step : all.steps) step[name] = at::zeros(shape_of(name));
    }
  }
  std::mutex mutex;
  comm::run_ranks_as_threads(
      setting.ranks,
      [&](Context& context) {
        const auto rank = static_cast<std::size_t>(context.rank());
        if (!setting.hosts.empty()) context.world().state().parts.host_ids = setting.hosts;
        KnownStage stage(context, options, setting);
        if (setting.go_on_from != nullptr) {
          fill(stage.hook().state(), setting.go_on_from->kept[rank]);
          stage.hook().restored();
        }
        for (int step = setting.first; step < setting.end; ++step) {
          if (step == setting.abandoned) {
            EXPECT_THROW(stage.step(step, /*fails=*/true), InvalidArgument);
          }
          stage.step(step);
          const std::lock_guard lock(mutex);
          const auto pieces = stage.pipe().pieces();
          for (const auto& [name, tensor] : stage.pipe().parameters()) {
            if (name == "p4") continue;
            const auto piece = pieces.find(name);
            const bool is_whole = piece == pieces.end();
            all.runs[name][rank] = {is_whole ? 0 : piece->second.begin, tensor.numel()};
            all.steps[static_cast<std::size_t>(step - setting.first)][name]
                .view({-1})
                .narrow(0, all.runs[name][rank].begin, tensor.numel())
                .copy_(tensor.grad().view({-1}));
          }
        }
        all.kept[rank] = copy_of(stage.hook().state());
        all.sent[rank] = stage.hook().sent_bytes();
      },
      {.backend = setting.backend, .timeout_s = 20});
  return all;
}

/// A layer of rank 1 throws in the second micro-batch of a step, when the first is in flight.
inline void expect_others_are_told(const CompressionOptions& options, ShardSetting setting) {
  setting.microbatches = 2;
  setting.spoil = [](const std::string&, int rank, int step, at::Tensor&) {
    static thread_local int calls = 0;
    if (rank == 1 && step == 1) require(++calls <= 5, "a layer of one's own says no");
  };
  comm::run_ranks_as_threads(setting.ranks,
                             [&](Context& context) {
                               if (!setting.hosts.empty())
                                 context.world().state().parts.host_ids = setting.hosts;
                               KnownStage stage(context, options, setting);
                               stage.step(0);
                               if (context.rank() == 1) {
                                 EXPECT_THROW(stage.step(1), InvalidArgument);
                               } else {
                                 EXPECT_THAT([&] { stage.step(1); },
                                             testing::ThrowsMessage<CommError>(testing::HasSubstr("rank 1")));
                               }
                             },
                             {.backend = setting.backend, .timeout_s = 20});
}

}  // namespace trireme::test
