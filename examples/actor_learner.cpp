// Reinforcement learning with remote calls. Actors play and send their trajectories to a learner. It trains
// the policy (REINFORCE) and distributes versioned weights. Actors may be killed and others may join at any
// time.
//   example_actor_learner [ACTORS]           the learner; ends after so many actors have taken part (3)
//   example_actor_learner HOST:PORT NAME     an actor; HOST:PORT is printed by the learner
#include <torch/nn/utils/convert_parameters.h>
#include <torch/torch.h>

#include <iostream>

#include "trireme/remote/autograd.h"
#include "trireme/wire/store_server.h"

using namespace trireme;
constexpr std::int64_t kWidth = 7, kHeight = 8, kGames = 32, kMaxVersions = 30'000;
/// Observations, actions and rewards, by step and game.
using Trajectories = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

torch::nn::Sequential policy(torch::nn::Linear(2 * kWidth - 1, 32), torch::nn::Tanh(),
                             torch::nn::Linear(32, 3));

/// A ball falls down a column. The player moves at most one step to the side at a time, and has to be in this
/// column when the ball lands. The observation is the signed distance to the ball's column.
Trajectories play(std::int64_t games) {
  const at::NoGradGuard no_gradients;
  const at::Tensor ball = at::randint(kWidth, {games}, at::kLong);
  at::Tensor place = at::randint(kWidth, {games}, at::kLong);
  std::vector<at::Tensor> seen, moves;
  for (std::int64_t step = 0; step < kHeight; ++step) {
    seen.push_back(at::one_hot(ball - place + kWidth - 1, 2 * kWidth - 1).to(at::kFloat));
    moves.push_back(policy->forward(seen.back()).softmax(1).multinomial(1));
    place = (place + moves.back().squeeze(1) - 1).clamp(0, kWidth - 1);
  }
  return {at::stack(seen), at::stack(moves), place.eq(ball).to(at::kFloat)};
}
double reward() { return std::get<2>(play(1000)).mean().item<double>(); }

struct Learner {
  std::size_t num_actors = 3;
  std::mutex mutex;
  torch::optim::Adam optimizer{policy->parameters(), 0.01};
  std::int64_t version = 1;
  double average = 0;
  std::map<std::string, std::int64_t> by_actor;
  std::atomic<bool> is_done = false;
} learner;

/// The version and its weights, copied under the lock, so that they are consistent. Undefined weights: there
/// is no newer version.
std::pair<std::int64_t, at::Tensor> newer_than(std::int64_t version) {
  const std::lock_guard lock(learner.mutex);
  if (learner.version <= version) return {version, {}};
  return {learner.version, torch::nn::utils::parameters_to_vector(policy->parameters()).detach()};
}

/// False: no more trajectories are needed.
bool learn(const std::string& actor, const Trajectories& played) {
  const std::lock_guard lock(learner.mutex);
  const auto& [seen, moves, rewards] = played;
  const at::Tensor chances = policy->forward(seen).log_softmax(2).gather(2, moves).squeeze(2);
  learner.optimizer.zero_grad();
  (chances * (rewards.mean() - rewards)).mean().backward();
  learner.optimizer.step();
  learner.average += 0.02 * (rewards.mean().item<double>() - learner.average);
  if ((learner.by_actor[actor] += kGames) == kGames) std::cout << actor << " takes part" << std::endl;
  const bool is_enough = learner.average > 0.95 || learner.version >= kMaxVersions;
  if (++learner.version && is_enough && learner.by_actor.size() >= learner.num_actors) learner.is_done = true;
  learner.is_done.notify_all();
  return !learner.is_done;
}

int main(int argc, char** argv) try {
  const bool acts = argc > 2;
  std::optional<wire::StoreServer> store;  // the rendezvous
  if (!acts) store.emplace(wire::listen_at({"127.0.0.1", 0}), wire::StoreServerOptions{});
  const auto meeting = acts ? wire::Endpoint::parse(argv[1], "the learner's address") : store->endpoint();
  torch::manual_seed(acts ? std::hash<std::string>()(argv[2]) : 1);
  if (!acts && argc > 1) learner.num_actors = std::stoul(argv[1]);
  if (!acts) std::cout << "reward before: " << reward() << "\nlearner at " << meeting.text() << std::endl;
  const auto agent =
      remote::join({.name = acts ? argv[2] : "learner",
                    .directory = std::make_shared<rpc::StoreDirectory>(
                        wire::StoreClientOptions{.endpoint = meeting, .secret = {}}),
                    .report = [](const std::string& line) { std::cout << line << std::endl; }});
  for (std::int64_t version = 0, goes_on = acts; goes_on;) {
    const auto [newest, weights] = agent->rpc_sync("learner", rpc::function<"newer", &newer_than>, version);
    if (newest > std::exchange(version, newest))
      torch::nn::utils::vector_to_parameters(weights, policy->parameters());
    goes_on = agent->rpc_sync("learner", rpc::function<"learn", &learn>, agent->name(), play(kGames));
  }
  if (!acts) learner.is_done.wait(false);
  // The learner leaves after the actors.
  agent->leave(acts ? rpc::Agent::Leave::kAlone : rpc::Agent::Leave::kWithAll);
  if (!acts) std::cout << "reward after: " << reward() << ", version " << learner.version << std::endl;
  for (const auto& [actor, num] : learner.by_actor) std::cout << actor << ": " << num << " trajectories\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
