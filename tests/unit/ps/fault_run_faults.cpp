// The faults of a FaultRun.

#include <algorithm>

#include "tests/unit/ps/fault_run.h"

namespace trireme::ps {

/// Whether each partition has as many replicas as it should have now, whatever the coordinator has been told.
bool FaultRun::has_copies() {
  if (!cluster_.simulation.is_running("coordinator")) return false;
  const ClusterMap& map = cluster_.coordinator().map();
  for (PartitionId id = 0; id < map.partitions.size(); ++id) {
    const PartitionEntry& entry = map.partitions[id];
    const auto holds = [&](ServerId member) {
      const ServerEntry* server = map.server(member);
      if (server == nullptr || !server->may_hold() || !cluster_.simulation.is_running(server->name))
        return false;
      const auto report = cluster_.simulation.node<Server>(server->name).report(id);
      return report.holds_all && report.epoch == entry.epoch;
    };
    if (entry.chain.size() < options_.num_replicas ||
        !std::all_of(entry.chain.begin(), entry.chain.end(), holds))
      return false;
  }
  return true;
}

bool FaultRun::wait_for_copies() {
  if (cluster_.simulation.run_until([&] { return has_copies() || !failure_.empty(); }, kPatience_s))
    return true;
  fail("no second copy of something was ever made");
  return false;
}

void FaultRun::inject() {
  switch (random_.below(options_.single_messages ? 9 : 8)) {
    case 0:
    case 1:
      return crash_server();
    case 2:
      return freeze_server();
    case 3:
      return cut_link();
    case 4:
      return restart_coordinator();
    case 5:
      return server_comes_or_goes();
    case 6:
      return crash_worker();
    case 7:
      return cut_off_coordinator();
    default:
      return lose_messages();
  }
}

void FaultRun::crash_server() {
  if (!wait_for_copies()) return;
  const std::string name = servers()[random_.below(3)];
  if (!cluster_.simulation.is_running(name)) return;
  cluster_.simulation.crash(name);
  if (random_.below(4) == 0) restart_coordinator();
  cluster_.simulation.run_for(3 * random_.uniform());
  cluster_.simulation.start(name);
  wait_for_copies();
}

void FaultRun::freeze_server() {
  if (!wait_for_copies()) return;
  const std::string name = servers()[random_.below(3)];
  if (!cluster_.simulation.is_running(name)) return;
  cluster_.simulation.freeze(name);
  cluster_.simulation.run_for(5 * random_.uniform());
  cluster_.simulation.thaw(name);
  wait_for_copies();
}

void FaultRun::cut_link() {
  if (!wait_for_copies()) return;
  const std::vector<std::string> names = {"server0",     "server1", "server2",
                                          "coordinator", "worker0", "worker1"};
  const std::string& one = names[random_.below(3)];
  std::vector<std::string> others;
  for (const std::string& name : names) {
    if (name != one && (random_.below(3) == 0)) others.push_back(name);
  }
  for (const std::string& other : others) cluster_.simulation.cut(one, other);
  cluster_.simulation.run_for(5 * random_.uniform());
  cluster_.simulation.heal_all();
  wait_for_copies();
}

/// Disconnects a primary and a worker from the coordinator. They can reach each other, but do not get its
/// decisions.
void FaultRun::cut_off_coordinator() {
  if (!wait_for_copies()) return;
  cluster_.simulation.cut("coordinator", servers()[random_.below(3)]);
  if (random_.below(2) == 0)
    cluster_.simulation.cut("coordinator", Cluster::worker_name(static_cast<int>(random_.below(2))));
  cluster_.simulation.run_for(2 + 3 * random_.uniform());
  cluster_.simulation.heal_all();
  wait_for_copies();
}

void FaultRun::restart_coordinator() {
  if (!cluster_.simulation.is_running("coordinator")) return;
  cluster_.simulation.crash("coordinator");
  cluster_.simulation.run_for(2 * random_.uniform());
  cluster_.simulation.start("coordinator");
}

void FaultRun::server_comes_or_goes() {
  if (!cluster_.simulation.is_running("server3")) {
    cluster_.simulation.start("server3");
    return;
  }
  if (!wait_for_copies()) return;
  cluster_.server(3).leave();
  if (!cluster_.simulation.run_until([&] { return cluster_.server(3).is_released(); }, kPatience_s))
    return fail("a server that wanted to leave was never released");
  cluster_.simulation.crash("server3");
}

void FaultRun::crash_worker() {
  const int worker = static_cast<int>(random_.below(2));
  const std::string name = Cluster::worker_name(worker);
  for (const auto& life : lives_) {
    if (life->worker == worker && life->has_ended == false && life->is_done) return;
  }
  cluster_.simulation.crash(name);
  for (const auto& life : lives_) {
    if (life->worker == worker) life->has_ended = true;
  }
  cluster_.simulation.run_for(2 * random_.uniform());
  cluster_.simulation.start(name);
  begin_life(worker);
}

void FaultRun::lose_messages() {
  cluster_.simulation.set_faults({.drop = 0.02, .duplicate = 0.05, .reorder = 0.05});
  cluster_.simulation.run_for(2 * random_.uniform());
  cluster_.simulation.set_faults({});
}

}  // namespace trireme::ps
