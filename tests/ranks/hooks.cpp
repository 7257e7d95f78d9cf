// A rank of a run with user-defined hooks, one of which may throw: hooks FILE.toml [--resume] [--set
// KEY=VALUE]... Trains as `trireme train` does, with the same bits. TRIREME_TEST_THROW="PLACE RANK CALL KIND"
// selects an exception. PLACE is data, forward or backward of a layer, objective, gradients, step or
// evaluation. RANK and CALL are the rank and the number of the call. KIND is a DataError (data) or an
// exception of another library (other). Without the variable no hook throws.
#include <atomic>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/base/stop_request.h"
#include "trireme/comm/context.h"
#include "trireme/model/mlp.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/trainer.h"

namespace {

using namespace trireme;

class Thrower {
 public:
  explicit Thrower(int rank) : own_rank_(rank) {
    const char* given = std::getenv("TRIREME_TEST_THROW");
    if (!given) return;
    std::istringstream words(given);
    require(static_cast<bool>(words >> place_ >> rank_ >> call_ >> kind_), "TRIREME_TEST_THROW is '", given,
            "'; expected PLACE RANK CALL KIND");
  }

  /// Thread-safe, because loader threads call it.
  void pass(const std::string& place) const {
    if (place != place_ || own_rank_ != rank_ || ++calls_ != call_) return;
    const std::string what = text("the hook of rank ", rank_, " (", place, ") has had enough");
    if (kind_ == "data") throw DataError(what);
    throw std::runtime_error(what);
  }

 private:
  const int own_rank_;
  std::string place_, kind_;
  int rank_ = -1, call_ = 0;
  mutable std::atomic<int> calls_{0};
};

class ThrowingData : public data::Dataset {
 public:
  ThrowingData(std::shared_ptr<const data::Dataset> data, const Thrower& thrower)
      : data_(std::move(data)), thrower_(thrower) {}
  std::int64_t size() const override { return data_->size(); }
  data::Example get(std::int64_t index) const override {
    thrower_.pass("data");
    return data_->get(index);
  }

 private:
  const std::shared_ptr<const data::Dataset> data_;
  const Thrower& thrower_;
};

class ThrowingObjective : public objective::Objective {
 public:
  ThrowingObjective(std::shared_ptr<const objective::Objective> objective, const Thrower& thrower)
      : objective_(std::move(objective)), thrower_(thrower) {}
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const override {
    thrower_.pass("objective");
    return objective_->loss(output, target);
  }
  double count(const at::Tensor& target) const override { return objective_->count(target); }
  const std::vector<objective::Metric>& metrics() const override { return objective_->metrics(); }
  std::optional<objective::ClassLoss> class_loss() const override { return objective_->class_loss(); }

 private:
  const std::shared_ptr<const objective::Objective> objective_;
  const Thrower& thrower_;
};

/// The MLP of the configuration. Its tensor-parallel form is the shipped one and does not throw.
class ThrowingMlp : public model::Mlp {
 public:
  ThrowingMlp(const train::RunConfig& config, const data::DataSource& source, const Thrower& thrower)
      : Mlp(c10::multiply_integers(source.input_shape), config.model.hidden, source.num_classes),
        thrower_(thrower) {}
  std::vector<model::Layer> layers() override {
    std::vector<model::Layer> chain = Mlp::layers();
    for (model::Layer& layer : chain) {
      layer.forward = [forward = std::move(layer.forward), &thrower = thrower_](const Fields& input) {
        thrower.pass("forward");
        Fields output = forward(input);
        if (output.at(0).requires_grad())
          output.at(0).register_hook([&thrower](const at::Tensor&) { thrower.pass("backward"); });
        return output;
      };
    }
    return chain;
  }

 private:
  const Thrower& thrower_;
};

int train_with_hooks(int argc, char** argv) {
  require(argc > 1, "usage: hooks FILE.toml [--resume] [--set KEY=VALUE]...");
  std::vector<std::string> overrides;
  train::RunPlan plan;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--resume") plan.start = train::RunStart::kResume;
    if (word == "--set" && i + 1 < argc) overrides.emplace_back(argv[++i]);
  }
  const train::RunConfig config = train::load_run_config(argv[1], overrides);
  const StopRequest stop;
  plan.stop = &stop;
  const auto context = comm::Context::from_environment(config.comm);
  const Thrower thrower(context->rank());
  data::DataSource source = train::open_data(config);
  plan.objective = std::make_shared<ThrowingObjective>(
      objective::make_objective(config.objective, {.data = source}), thrower);
  source.train = std::make_shared<ThrowingData>(data::indexed(source.train), thrower);
  plan.model = std::make_shared<ThrowingMlp>(config, source, thrower);
  plan.model->initialise(static_cast<std::uint64_t>(config.run.seed));
  plan.data = source;
  plan.callbacks = {.on_start =
                        [&](train::Trainer& trainer) {
                          trainer.on_gradients([&](const auto&) { thrower.pass("gradients"); });
                        },
                    .on_step = [&](const auto&) { thrower.pass("step"); },
                    .on_evaluation =
                        [&](auto, const auto&) {
                          thrower.pass("evaluation");
                          return train::RunControl::kContinue;
                        }};
  return train::run_training(config, *context, plan).exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] { return train_with_hooks(argc, argv); });
}
