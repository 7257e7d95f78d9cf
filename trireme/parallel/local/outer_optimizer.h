#pragma once
// Local SGD and DiLoCo. A site is one rank, or several ranks that average their gradients. Sites take local
// steps. Every so many steps the change of their weights is averaged over the sites. It is the gradient of an
// outer step, which starts from the values that all sites began with. With rate 1 and no momentum the outer
// step is the mean of the sites, LocalSGD (Stich, arXiv 1805.09767). After first steps with averaged
// gradients it is post-local SGD (Lin et al., arXiv 1808.07217). With Nesterov's momentum it is DiLoCo
// (Douillard et al., arXiv 2311.08105, algorithm 1). In fragments that are transferred while training
// continues it is Streaming DiLoCo (Douillard et al., arXiv 2501.18512, sections 2.2 and 2.3).
//
// Every rank holds, besides the model: the outer values, the outer optimizer's state, a buffer for transfers
// and a buffer for the mean, of the model's size each. A rank of a site sends only its share of the model. So
// a model of S bytes costs a site 2 (n - 1) / n * S between sites. This holds for any number of its ranks.
// Floating buffers are averaged, without momentum. Collective among the ranks of all sites except where
// noted; one thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

/// When sites exchange, and which part of the model.
struct OuterOptions {
  std::int64_t every = 1;  ///< steps of a round, >= 1
  std::int64_t from = 0;   ///< steps before the first round, in which sites average their gradients
  int fragments =
      1;  ///< parts of the model, each of which goes in a step of its own: f at f / fragments of a round
  std::int64_t delay = 0;  ///< steps between sending and the outer step, < every
  /// With a delay: share of its own values that a site keeps when the outer ones arrive, in [0, 1].
  double mixing = 0.5;
  optim::OptimizerOptions optimizer = {.name = "sgd", .lr = 1, .momentum = 0};
};

/// Where its ranks are.
struct SiteGroups {
  comm::Group sites;                ///< those at this rank's place in all sites
  std::optional<comm::Group> site;  ///< the ranks of this one; none: it is alone
};

class OuterOptimizer {
 public:
  /// The tensors are those that steps change, equal on all ranks; frozen parameters stay out. Throws
  /// InvalidArgument: an option out of its range, fewer parameters than fragments. Not collective.
  OuterOptimizer(const OuterOptions& options, SiteGroups groups, const optim::NamedTensors& parameters,
                 const optim::NamedTensors& buffers);
  ~OuterOptimizer();

  /// Whether that step, 1 for the first, is one before the rounds.
  bool averages_gradients(std::int64_t step) const { return step <= options_.from; }
  /// Gradients of the sites, each of which is a part of the sum, become the sum.
  void add_gradients();

  /// After step number `step`: sends the due fragments, and takes the due outer steps.
  void after_step(std::int64_t step);

  /// Waits for fragments in transfer, and puts them into the state. They take effect at their planned step.
  void settle();

  /// model() becomes the mean over the sites. It costs no exchange where they agree, as after an outer step
  /// of the whole model.
  void synchronize();
  /// The model of all sites, by the names of parameters and floating buffers, as it was at synchronize().
  /// Restored in place.
  const optim::NamedTensors& model() const { return mean_; }

  /// While it lives, parameters and buffers have the values of model(), and that has theirs.
  class Shown {
   public:
    explicit Shown(OuterOptimizer& steps) : steps_(steps) { steps_.exchange(); }
    ~Shown() { steps_.exchange(); }
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    OuterOptimizer& steps_;
  };

  /// By name, shared, not copied: restore them in place. The same on all ranks, and of each site.
  optim::NamedTensors common_state() const;
  optim::NamedTensors own_state() const { return own_; }
  /// They have been restored.
  void restored();
  /// The model has been, and nothing else: all sites begin with it.
  void begin_with_model();

  int site() const { return groups_.sites.rank(); }
  int num_sites() const { return groups_.sites.size(); }
  /// Bytes that this rank has sent to other sites so far, as if in a ring.
  std::int64_t sent_bytes() const { return sent_bytes_; }
  /// Seconds for which it has waited for them.
  double waited_s() const { return waited_s_; }

 private:
  struct Fragment;

  bool sends(int fragment, std::int64_t step) const;
  void send(Fragment& fragment, std::int64_t step);
  void settle(Fragment& fragment);
  void step(Fragment& fragment);
  /// The sum of `flat` over the sites, each rank's share first.
  comm::Pending start_sum(const at::Tensor& flat);
  void gather(at::Tensor& flat);
  void sum(at::Tensor& flat);
  at::Tensor share_of(const at::Tensor& flat) const;
  void exchange();

  const OuterOptions options_;
  SiteGroups groups_;
  optim::NamedTensors own_;    ///< state that steps change: parameters, then floating buffers
  optim::NamedTensors outer_;  ///< the same, as the last outer step has left them; not below f32
  optim::NamedTensors mean_;
  std::vector<std::unique_ptr<Fragment>> fragments_;
  std::unique_ptr<optim::Optimizer> optimizer_;  ///< of the parameters' outer values
  bool agree_ = false;                           ///< all sites have the same values
  bool is_mean_known_ = false;                   ///< mean_ is that of the values as they are
  std::int64_t sent_bytes_ = 0;
  double waited_s_ = 0;
};

}  // namespace trireme::parallel
