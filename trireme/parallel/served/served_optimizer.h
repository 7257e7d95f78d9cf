#pragma once
// An optimizer that lives on the servers of a parameter server (trireme/ps/): this rank pushes its gradients,
// the servers add those of all ranks up and update, and the new values are pulled. With staleness 0 a step is
// the same as if gradients were reduced over the ranks and each rank updated: servers add in the order of the
// ranks. With k > 0 ranks may be k steps apart, with -1 any number: each rank's gradient, which is its share
// of the global batch's, is an update of its own.
//
// Parameters are f32 and are stored one after the other in two tables, with and without weight decay. A later
// run of the same name uses the same tables and initializes them again. One thread; the constructor,
// synchronize() and restored() are collective among the ranks.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/served/served_options.h"
#include "trireme/ps/client.h"
#include "trireme/telemetry/status_page.h"
#include "trireme/wire/node_loop.h"

namespace trireme::parallel {

class ServedTable;
struct ServedParameter;

/// The parameter servers of a run.
struct Service {
  ServedOptions options;
  wire::NodeLoopOptions loop = {};          ///< how connections are secured, and addresses looked up
  std::string run;                          ///< tables are called after it
  ps::CompressionSpec compression = {};     ///< of pushes; values are pulled as they are
  double timeout_s = 60;                    ///< of every wait for servers and, through them, for other ranks
  telemetry::StatusPage* status = nullptr;  ///< has the current wait; null: unused
};

class ServedOptimizer final : public optim::Optimizer {
 public:
  /// The tables begin with rank 0's values, and all ranks get them. Throws InvalidArgument: an optimizer that
  /// servers do not have, a parameter that is not f32; CommError.
  ServedOptimizer(const Service& service, const optim::OptimizerOptions& options,
                  optim::NamedTensors parameters, comm::Group ranks);
  ~ServedOptimizer() override;

  void gradient_is_final(const at::Tensor& parameter) override;
  void finish_pending_updates() override;
  void finish_pending_updates(const optim::NamedTensors& parameters) override;
  void synchronize() override;
  void pull_state() override;
  void restored() override;
  std::map<std::string, at::Tensor> state() override { return mirror_->state(); }
  double waited_s() const override { return waited_s_; }
  std::optional<int> staleness() const override { return staleness_; }

 protected:
  /// Pushes the remaining gradients, ends the step, begins to pull. Throws InvalidArgument: a parameter
  /// without a gradient.
  void update(double lr) override;

 private:
  /// Place of a parameter in the tables.
  struct Place {
    ServedTable* table = nullptr;
    std::size_t number = 0;  ///< in it
  };

  void add_table(const Service& service, const optim::OptimizerOptions& optimizer, double weight_decay,
                 const std::vector<ServedParameter>& parameters);
  void pull();
  void finish_pull(const Place& place);
  /// Throws the error of a push.
  void look_at_pushes(bool wait_for_all);
  /// Drains the pushes of aborted steps, so that they cannot be mixed with later ones. Collective.
  void end_broken_steps();
  template <class Work>
  void timed(const Work& work);

  comm::Group ranks_;
  telemetry::StatusPage* const status_;
  const std::unique_ptr<optim::Optimizer> mirror_;  ///< names of the state, and its values for a save
  std::vector<std::unique_ptr<ServedTable>> tables_;
  std::unordered_map<const void*, Place> places_;  ///< of parameters, by their tensors
  std::deque<ps::Pending> pushes_;
  std::unique_ptr<ps::Client> client_;           ///< destroyed first: it reads and writes the other members
  ps::WorkerClock clock_ = 0;                    ///< steps that this rank has ended, as the servers count
  std::optional<ps::WorkerClock> others_clock_;  ///< of the slowest, with the newest values
  std::optional<int> staleness_;
  double waited_s_ = 0;
};

/// Names of optimizers that servers have.
std::vector<std::string> served_optimizer_names();
/// Compressions that pushes may have, "none" among them.
std::vector<std::string> served_codec_names();

}  // namespace trireme::parallel
