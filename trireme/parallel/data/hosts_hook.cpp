#include "trireme/parallel/data/internal/hosts_hook.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/host_groups.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/relay.h"
#include "trireme/parallel/data/internal/residual_keeper.h"

namespace trireme::parallel {
namespace {

struct ScopeRow {
  const char* name;
  CompressionScope scope;
};
constexpr std::array kScopes = {ScopeRow{"auto", CompressionScope::kAuto},
                                ScopeRow{"all", CompressionScope::kAll},
                                ScopeRow{"hosts", CompressionScope::kHosts}};

/// Neighbouring gradients in a bucket, with the padding after them, that one rank of each host owns.
struct Run {
  int owner;  ///< its place on its host
  at::Tensor flat;
};

class HostsHook final : public CommHook, public ResidualKeeper {
 public:
  HostsHook(std::shared_ptr<CommHook> compression, CompressionScope scope)
      : compression_(std::move(compression)), scope_(scope) {}

  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) override {
    if (std::exchange(is_new_, false) && goes_by_hosts(group)) hosts_ = comm::make_host_groups(group);
    if (!hosts_) return compression_->prepare(group, parameters);
    if (group_name_.empty()) group_name_ = group.name();
    require(group.name() == group_name_, "gradient compression \"", describe_compression(),
            "\" goes by the hosts of group '", group_name_, "', and these are gradients of group '",
            group.name(), "': make another hook for them with make_comm_hook()");
    require_f32(describe_compression(), parameters);
    for (const auto& [name, parameter] : parameters)
      require(!owners_.contains(name), kept_already(describe_compression(), name));
    assign(parameters);
    optim::NamedTensors mine;
    for (const auto& each : parameters) {
      if (is_mine(each.first)) mine.push_back(each);
    }
    if (!mine.empty()) compression_->prepare(*hosts_->between, mine);
  }
  void attach_optimizer(const std::map<std::string, at::Tensor>& state) override {
    compression_->attach_optimizer(state);
  }
  void set_gradient_scale(double scale) override { compression_->set_gradient_scale(scale); }
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override;
  HookState state() override {
    HookState state = compression_->state();
    if (hosts_) state.of_host = {.host = hosts_->host, .num_hosts = hosts_->num_hosts};
    return state;
  }
  comm::Group memory_of(const comm::Group& group) const override {
    return hosts_ && hosts_->inside ? *hosts_->inside : group;
  }
  void restored() override { compression_->restored(); }
  std::string describe() const override {
    return text(compression_->describe(), ", scope ", kScopes.at(static_cast<std::size_t>(scope_)).name);
  }
  std::int64_t sent_bytes() const override { return compression_->sent_bytes(); }
  void release(GradientBucket& bucket, double factor) override {
    GradientBucket mine = hosts_ ? mine_in(bucket) : bucket;
    dynamic_cast<ResidualKeeper&>(*compression_).release(mine, factor);
  }
  double factor_in(const comm::Group& group, ReduceScale scale) const override {
    return hosts_ ? 1 / share_of(group, scale) : 1;
  }

 private:
  /// Of a sum inside a host: of means the other hook makes a mean over the hosts.
  double share_of(const comm::Group& group, ReduceScale scale) const {
    return scale == ReduceScale::kMean ? 1.0 * hosts_->num_hosts / group.size() : 1.0;
  }
  bool goes_by_hosts(const comm::Group& group) const {
    if (scope_ != CompressionScope::kAuto) return scope_ == CompressionScope::kHosts;
    const int hosts = comm::num_hosts(group);
    return hosts > 1 && hosts < group.size();
  }
  std::string describe_compression() const { return split(compression_->describe(), ',').front(); }
  int place() const { return hosts_->inside ? hosts_->inside->rank() : 0; }
  bool is_mine(const std::string& name) const { return owners_.at(name) == place(); }
  void assign(const optim::NamedTensors& parameters);
  std::vector<Run> runs_of(const GradientBucket& bucket) const;
  GradientBucket mine_in(const GradientBucket& bucket) const;
  void hand_round(std::vector<Run> runs);

  const std::shared_ptr<CommHook> compression_;
  const CompressionScope scope_;
  bool is_new_ = true;
  std::optional<comm::HostGroups> hosts_;  ///< none: each rank compresses
  std::string group_name_;                 ///< the group of these hosts
  std::map<std::string, int> owners_;      ///< of parameters: places on a host
  std::vector<std::int64_t> numel_of_;     ///< by owner
  Relay relay_;
};

/// Greedy longest-processing-time assignment. Vectors and small gradients have the owner of their neighbour,
/// so that a bucket has few runs.
void HostsHook::assign(const optim::NamedTensors& parameters) {
  numel_of_.resize(static_cast<std::size_t>(hosts_->lanes));
  std::vector<std::pair<std::string, std::int64_t>> large;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.dim() > 1) large.emplace_back(name, parameter.numel());
  }
  std::ranges::stable_sort(large, std::ranges::greater(), [](const auto& each) { return each.second; });
  for (const auto& [name, numel] : large) {
    const auto least = std::ranges::min_element(numel_of_);
    *least += numel;
    owners_[name] = static_cast<int>(least - numel_of_.begin());
  }
  int neighbour = 0;
  for (const auto& [name, parameter] : parameters)
    neighbour = owners_.try_emplace(name, neighbour).first->second;
}

std::vector<Run> HostsHook::runs_of(const GradientBucket& bucket) const {
  const auto place_of = [&](const at::Tensor& gradient) {
    return gradient.storage_offset() - bucket.flat.storage_offset();
  };
  std::vector<std::pair<int, std::int64_t>> begins;  // owner, offset
  for (const auto& [name, gradient] : bucket.gradients) {
    const int owner = owners_.at(name);
    if (begins.empty() || begins.back().first != owner) begins.emplace_back(owner, place_of(gradient));
  }
  std::vector<Run> runs;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const std::int64_t end = i + 1 < begins.size() ? begins[i + 1].second : bucket.flat.numel();
    runs.push_back(
        {.owner = begins[i].first, .flat = bucket.flat.narrow(0, begins[i].second, end - begins[i].second)});
  }
  return runs;
}

/// The flag has the owner of the bucket's last gradient.
GradientBucket HostsHook::mine_in(const GradientBucket& bucket) const {
  GradientBucket mine{.flat = bucket.flat, .flag = {}, .gradients = {}};
  for (const auto& each : bucket.gradients) {
    if (is_mine(each.first)) mine.gradients.push_back(each);
  }
  if (is_mine(bucket.gradients.back().first)) mine.flag = bucket.flag;
  return mine;
}

std::function<void()> HostsHook::start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) {
  if (!hosts_) return compression_->start(group, bucket, scale);
  std::vector<Run> runs = runs_of(bucket);
  std::vector<comm::Pending> sums;
  for (Run& run : runs) {
    if (hosts_->inside) sums.push_back(hosts_->inside->reduce_async(run.flat, run.owner));
  }
  const double share = share_of(group, scale);
  return relay_.add([this, runs = std::move(runs), sums = std::move(sums), mine = mine_in(bucket), share,
                     scale]() mutable -> Relay::Wait {
    for (comm::Pending& sum : sums) sum.wait();
    for (Run& run : runs) {
      if (run.owner == place() && share != 1) run.flat.mul_(share);
    }
    Relay::Wait arrives = [] {};
    if (!mine.gradients.empty()) arrives = compression_->start(*hosts_->between, mine, scale);
    return [this, runs = std::move(runs), arrives = std::move(arrives)] {
      arrives();
      hand_round(runs);
    };
  });
}

void HostsHook::hand_round(std::vector<Run> runs) {
  if (!hosts_->inside) return;
  std::vector<comm::Pending> copies;
  for (Run& run : runs) copies.push_back(hosts_->inside->broadcast_async(run.flat, run.owner));
  for (comm::Pending& copy : copies) copy.wait();
}

}  // namespace

CompressionScope compression_scope_of(const std::string& name) {
  for (const ScopeRow& row : kScopes) {
    if (name == row.name) return row.scope;
  }
  throw InvalidArgument(
      text("there is no compression scope '", name, "'", suggest(name, compression_scope_names())));
}

std::vector<std::string> compression_scope_names() {
  std::vector<std::string> names;
  for (const ScopeRow& row : kScopes) names.emplace_back(row.name);
  return names;
}

std::shared_ptr<CommHook> make_hosts_hook(std::shared_ptr<CommHook> compression, CompressionScope scope) {
  return std::make_shared<HostsHook>(std::move(compression), scope);
}

}  // namespace trireme::parallel
