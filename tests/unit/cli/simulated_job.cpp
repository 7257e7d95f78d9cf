#include "simulated_job.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "simulated_surroundings.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

constexpr double kLongestRun_s = 900;
constexpr double kGoodbye_s = 60, kLeaveGrace_s = 20, kLateGrace_s = 5;
// A launcher that was stopped until then may have been lost for the decision.
constexpr double kSilent_s = 10;
constexpr double kRendezvous_s = 20, kStoreMoves_s = 120;
constexpr int kStopped = 128 + SIGTERM;

}  // namespace

SimulatedJob::SimulatedJob(const SimulatedJobOptions& options) : options_(options), rng_(options.seed) {
  etcd_ = std::make_unique<Etcd>();
  const int hosts = static_cast<int>(random(2, 5));
  limits_ = {.wanted_ranks = hosts * 2,
             .min_ranks = 1,
             .wanted_hosts = hosts,
             .min_hosts = happens(0.7) ? 1 : 2,
             .max_restarts = 1000};
  needed_s_ = random(4, 25);
  for (int host = 0; host < hosts; ++host) add_launcher();
  plan_faults();
}

SimulatedJob::~SimulatedJob() = default;

void SimulatedJob::print(const std::string& line) {
  if (options_.prints) std::fprintf(stderr, "%8.3f %s\n", now_s_ - 1000, line.c_str());
}

void SimulatedJob::fail(const std::string& promise) {
  print("BROKEN: " + promise);
  if (broken_.empty()) broken_ = text("seed ", options_.seed, ", ", now_s_ - 1000, " s: ", promise);
}

std::string SimulatedJob::run() {
  const auto is_over = [](const auto& launcher) { return launcher->is_dead || launcher->is_over; };
  while (broken_.empty() && !std::ranges::all_of(launchers_, is_over)) {
    if (now_s_ > 1000 + kLongestRun_s && waits_for_hosts()) return "";
    if (now_s_ > 1000 + kLongestRun_s) fail("the job does not end");
    run_until(now_s_ + 1);
  }
  if (broken_.empty()) check_end();
  return broken_;
}

void SimulatedJob::check_end() {
  const bool all_are_gone = std::ranges::all_of(launchers_, [](const auto& each) { return each->is_dead; });
  if (may_fail_ || all_are_gone) return;
  for (const auto& launcher : launchers_) {
    if (launcher->is_dead || launcher->leaves) continue;
    if (launcher->exit_code != 0)
      fail(text("host ", launcher->number, " ended with ", launcher->exit_code, ": ", launcher->why));
  }
  if (trained_s_ < needed_s_) fail("the job ended with success before its work was done");
}

// Faults

void SimulatedJob::plan_faults() {
  for (int left = static_cast<int>(random(0, 7)); left > 0; --left) {
    const double at = random(0, 1);
    const Fault fault = at < 0.30   ? Fault::kKillProcess
                        : at < 0.32 ? Fault::kFailForGood
                        : at < 0.50 ? Fault::kKillLauncher
                        : at < 0.66 ? Fault::kStopLauncher
                        : at < 0.78 ? Fault::kLeave
                        : at < 0.80 ? Fault::kInterrupt
                        : at < 0.92 ? Fault::kJoin
                                    : Fault::kEtcdOutage;
    faults_.emplace_back(now_s_ + random(0, 25), fault);
  }
  std::ranges::sort(faults_);
}

SimulatedJob::Launcher* SimulatedJob::some_launcher(const std::function<bool(const Launcher&)>& fits) {
  std::vector<Launcher*> found;
  for (const auto& each : launchers_) {
    if (!each->is_dead && !each->is_over && fits(*each)) found.push_back(each.get());
  }
  return found.empty() ? nullptr : found[rng_() % found.size()];
}

void SimulatedJob::strike(Fault fault) {
  ++num_faults_;
  const auto any = [](const Launcher&) { return true; };
  Launcher* launcher = some_launcher(any);
  if (fault == Fault::kJoin && std::ssize(launchers_) < 8 && !has_ended_) return add_launcher();
  if (fault == Fault::kEtcdOutage && options_.has_etcd) {
    etcd_->down_until_s = now_s_ + random(0.5, 10);
    return print("etcd is down");
  }
  if (launcher == nullptr) return;
  if (fault == Fault::kKillLauncher) {
    if (!options_.has_etcd && launcher->number == 0) may_fail_ = true;
    kill(*launcher);
  } else if (fault == Fault::kStopLauncher) {
    launcher->stopped_until_s = now_s_ + (happens(0.9) ? random(0.5, 12) : random(60, 300));
    may_fail_ = may_fail_ || !options_.has_etcd;  // the first host does not wait for a stopped one
    print(text("host ", launcher->number, ": its launcher is stopped until ",
               launcher->stopped_until_s - 1000));
  } else if (fault == Fault::kLeave) {
    launcher->is_told = true;
    if (!options_.has_etcd && launcher->number == 0) may_fail_ = true;
    print(text("host ", launcher->number, " is told to leave"));
  } else if (fault == Fault::kInterrupt) {  // of a launcher: it is the end of the job where this one leads
    launcher->is_told = may_fail_ = true;
    launcher->stop_signal = SIGINT;
    print(text("host ", launcher->number, " is interrupted"));
  } else {
    launcher = some_launcher([](const Launcher& each) {
      return std::ranges::any_of(each.processes, [](const auto& p) { return !p->has_ended(); });
    });
    if (launcher == nullptr) return;
    for (const auto& process : launcher->processes) {
      if (process->has_ended()) continue;
      const bool for_good = fault == Fault::kFailForGood;
      process->end(for_good ? 1 : kExitComm, for_good);
      may_fail_ = may_fail_ || for_good;
      print(text(process->id, for_good ? " fails for good" : " is killed"));
      break;
    }
  }
  may_fail_ = may_fail_ || num_hosts_left() < limits_.min_hosts;
}

/// Also those that have not joined yet. A launcher that is stopped, or was a moment ago, counts as lost.
int SimulatedJob::num_hosts_left() const {
  return static_cast<int>(std::ranges::count_if(launchers_, [this](const auto& each) {
    return !each->is_dead && !each->is_over && !each->is_told && now_s_ >= each->stopped_until_s + kSilent_s;
  }));
}

/// Too few hosts came, or are left, and none of them was told to stop: the job waits without end.
bool SimulatedJob::waits_for_hosts() const {
  const bool some_are_told = std::ranges::any_of(
      launchers_, [](const auto& each) { return !each->is_dead && !each->is_over && each->is_told; });
  return !has_ended_ && !some_are_told && num_hosts_left() < limits_.min_hosts;
}

void SimulatedJob::add_launcher() {
  auto launcher = std::make_unique<Launcher>();
  launcher->number = static_cast<int>(launchers_.size());
  launcher->next_s = now_s_ + random(0, 3);
  launcher->surroundings = std::make_unique<Surroundings>(*this, *launcher);
  print(text("host ", launcher->number, " starts"));
  launchers_.push_back(std::move(launcher));
}

void SimulatedJob::kill(Launcher& launcher) {
  print(text("host ", launcher.number, " is killed, with its processes"));
  launcher.is_dead = true;
  for (const auto& process : launcher.processes) {
    if (!process->has_ended()) process->end(kExitComm, false);
  }
  for (const auto& [address, store] : stores_) store->is_open &= store->server != &launcher;
}

// Time

void SimulatedJob::run_until(double end_s) {
  while (broken_.empty()) {
    double at_s = end_s;
    std::function<void()> next;
    const auto propose = [&](double time_s, const auto& call) {
      if (time_s >= at_s) return;
      at_s = std::max(time_s, now_s_);
      next = call;
    };
    if (!faults_.empty())
      propose(faults_.front().first, [this] {
        const Fault fault = faults_.front().second;
        faults_.pop_front();
        strike(fault);
      });
    for (const auto& each : launchers_) {
      Launcher& launcher = *each;
      if (launcher.is_dead || launcher.is_over) continue;
      if (launcher.election != nullptr)
        propose(std::max(launcher.elect_s, launcher.stopped_until_s),
                [&] { etcd_->elect(launcher, now_s_); });
      if (!launcher.is_busy)
        propose(std::max(launcher.next_s, launcher.stopped_until_s), [&] { step(launcher); });
      for (const auto& process : launcher.processes) {
        if (!process->has_ended())
          propose(process->next_s, [&, &process = *process] { step(launcher, process); });
      }
    }
    if (!next) break;
    now_s_ = at_s;
    next();
  }
  now_s_ = std::max(now_s_, end_s);
}

/// The launcher is in a call, which takes that long. The others run meanwhile.
void SimulatedJob::wait(Launcher& caller, double seconds) {
  run_until(now_s_ + seconds);
  while (!caller.is_dead && broken_.empty() && now_s_ < caller.stopped_until_s)
    run_until(caller.stopped_until_s);
  if (caller.is_dead || !broken_.empty()) throw Killed{};
}

// Launchers: in place of cli::Supervisor

void SimulatedJob::step(Launcher& launcher) {
  launcher.is_busy = true;
  try {
    if (!launcher.job) {
      launcher.job = std::make_unique<ElasticJob>(launcher.surroundings->options(limits_));
      launcher.has_joined = true;
      print(text("host ", launcher.number, " has joined as ", launcher.job->host().node()));
    }
    look_after_job(launcher);
  } catch (const Killed&) {
  } catch (const Error& error) {
    launcher.is_over = true;
    launcher.exit_code = error.exit_code();
    launcher.why = error.what();
    may_fail_ = may_fail_ || launcher.is_told;
    print(text("host ", launcher.number, " gives up: ", error.what()));
  }
  launcher.is_busy = false;
  launcher.next_s = now_s_ + random(0.01, 0.05);
}

void SimulatedJob::look_after_job(Launcher& launcher) {
  ElasticJob& job = *launcher.job;
  ElasticHost& host = job.host();
  if (launcher.is_told && launcher.stop_signal == 0 && !launcher.leaves) {
    if (job.can_leave()) {
      host.leave();
      launcher.leaves = true;
      launcher.left_s = now_s_;
    } else {
      launcher.stop_signal = SIGTERM;
    }
  }
  std::vector<wire::MemberReport> reports;
  for (const auto& process : launcher.processes)
    reports.push_back({.id = process->id, .state = process->state, .exit_code = process->exit_code});
  const bool continues = job.exchange(reports);
  if (launcher.stop_signal != 0 && !launcher.leaves) job.stop(launcher.stop_signal);
  if (host.job().end) admit_none();
  if (host.job().end && host.job().end->exit_code == 0) {
    for (const auto& process : launcher.processes)  // it is not of the last world
      process->is_spare = process->is_spare || process->state != wire::MemberState::kDone;
  }
  const bool all_ended =
      std::ranges::all_of(launcher.processes, [](const auto& p) { return p->has_ended() || p->is_spare; });
  const bool is_final =
      launcher.leaves || launcher.stop_signal != 0 || launcher.exit_code > 0 || host.job().end;
  if (is_final && all_ended) return say_goodbye(launcher);
  if (!continues && launcher.exit_code <= 0) {
    launcher.why = job.why_over();
    return end_processes(launcher, kExitComm);
  }
  if (host.job().end && host.job().end->exit_code != 0 && launcher.exit_code <= 0) {
    launcher.why = host.job().end->reason;
    return end_processes(launcher, host.job().end->exit_code);
  }
  if (launcher.exit_code > 0 || host.job().end) return;
  if (host.job().stop_signal != 0) launcher.stop_signal = host.job().stop_signal;
  for (const auto& process : launcher.processes) process->stop_signal = launcher.stop_signal;
  if (launcher.stop_signal != 0) return;
  if (launcher.leaves && now_s_ - launcher.left_s > kLeaveGrace_s) return end_processes(launcher, kStopped);
  if (host.next_world()) return enter_next_world(launcher);
  if (host.is_lost()) return kill_late_processes(launcher);
  launcher.late_since_s = 0;
  for (const auto& process : launcher.processes)
    process->asked = host.world().generation + (host.job().wants_next ? 1 : 0);
}

void SimulatedJob::enter_next_world(Launcher& launcher) {
  ElasticHost& host = launcher.job->host();
  const wire::ElasticWorld world = *host.next_world();
  host.enter(world);
  launcher.late_since_s = 0;
  std::erase_if(launcher.processes, [](const auto& process) { return process->has_ended(); });
  for (const wire::ElasticMember& member : world.ranks) {
    if (member.node != host.node() || find(member.id) != nullptr) continue;
    auto process = std::make_unique<Process>();
    process->id = member.id;
    process->next_s = now_s_ + random(0.05, 1);
    begin(launcher, *process, world);
    launcher.processes.push_back(std::move(process));
  }
}

void SimulatedJob::kill_late_processes(Launcher& launcher) {
  std::vector<Process*> late;
  for (const auto& process : launcher.processes) {
    if (!process->has_ended() && !process->is_spare && !launcher.job->host().waits(process->id))
      late.push_back(process.get());
  }
  if (late.empty()) launcher.late_since_s = 0;
  if (!late.empty() && launcher.late_since_s == 0) launcher.late_since_s = now_s_;
  if (late.empty() || now_s_ - launcher.late_since_s < kLateGrace_s) return;
  for (Process* process : late) {
    print(text(process->id, " does not come to the next world; it is killed"));
    process->end(kExitComm, false);
  }
}

void SimulatedJob::end_processes(Launcher& launcher, int exit_code) {
  launcher.exit_code = exit_code;
  print(text("host ", launcher.number, " ends with ", exit_code, ": ", launcher.why));
  for (const auto& process : launcher.processes) {
    if (!process->has_ended()) process->end(exit_code, false);
  }
}

/// The job has ended: a launcher that joins now begins another one.
void SimulatedJob::admit_none() {
  has_ended_ = true;
  for (const auto& each : launchers_) each->is_dead |= !each->has_joined;
}

void SimulatedJob::say_goodbye(Launcher& launcher) {
  ElasticJob& job = *launcher.job;
  const bool only_leaves = launcher.leaves && !job.host().job().end;
  if (only_leaves) job.hand_over();
  const double end_s = now_s_ + kGoodbye_s;
  while (now_s_ < end_s && job.hears_others()) wait(launcher, 0.2);
  if (!only_leaves) admit_none();
  if (launcher.exit_code < 0 && launcher.stop_signal != 0) launcher.exit_code = 128 + launcher.stop_signal;
  for (const auto& process : launcher.processes) {
    const bool has_failed = process->has_ended() && process->exit_code != 0 && !process->is_spare;
    if (launcher.exit_code < 0 && has_failed && !only_leaves) launcher.exit_code = process->exit_code;
  }
  if (launcher.exit_code < 0) launcher.exit_code = 0;
  if (!only_leaves) job.finish(launcher.exit_code);
  launcher.is_over = true;
  print(text("host ", launcher.number, " has ended with ", launcher.exit_code));
  for (const auto& [address, store] : stores_) store->is_open &= store->server != &launcher;
  etcd_->release(launcher, now_s_);
}

// Processes: in place of comm::run_elastic()

SimulatedJob::Process* SimulatedJob::find(const std::string& id) {
  for (const auto& launcher : launchers_) {
    for (const auto& process : launcher->processes) {
      if (process->id == id) return process.get();
    }
  }
  return nullptr;
}

bool SimulatedJob::lives(const std::string& id) {
  const Process* process = find(id);
  return process != nullptr && !process->has_ended();
}

void SimulatedJob::begin(const Launcher& launcher, Process& process, const wire::ElasticWorld& world) {
  const auto [found, is_new] = worlds_.try_emplace(world.generation, FormingWorld{.world = world});
  if (found->second.world != world)
    return fail(text("generation ", world.generation, " has two worlds, of which ", process.id, " on host ",
                     launcher.number, " has the second"));
  std::set<std::string> ids;
  for (const wire::ElasticMember& each : world.ranks) ids.insert(each.id);
  if (std::ssize(ids) != world.size() || world.size() < limits_.min_ranks ||
      world.size() > limits_.wanted_ranks)
    fail(text("world ", world.generation, " has ", world.size(), " rank(s), ", ids.size(),
              " of them different"));
  if (world.generation <= process.generation)
    fail(text(process.id, " enters world ", world.generation, " again"));
  process.generation = world.generation;
  process.is_spare = world.rank_of(process.id) < 0;
  process.phase = process.is_spare ? Process::Phase::kWaits : Process::Phase::kMeets;
  process.has_registered = false;
  process.since_s = now_s_;
}

void SimulatedJob::step(Launcher& launcher, Process& process) {
  process.next_s = now_s_ + random(0.01, 0.05);
  try {
    if (process.phase == Process::Phase::kMeets) return meet(launcher, process);
    if (process.phase == Process::Phase::kTrains) return train(launcher, process);
    wait_for_world(launcher, process);
    process.silent_since_s = 0;
  } catch (const CommError& error) {
    if (process.phase != Process::Phase::kWaits) return lose(process, error.what());
    if (process.silent_since_s == 0) process.silent_since_s = now_s_;
    process.next_s = now_s_ + 0.5;
    if (now_s_ - process.silent_since_s > kStoreMoves_s) process.end(kExitComm, false);
  }
}

/// The rendezvous of the ranks of a world: the first writer decides how it ends.
void SimulatedJob::meet(Launcher& launcher, Process& process) {
  FormingWorld& world = worlds_.at(process.generation);
  const std::string key = wire::rendezvous_outcome_key(process.generation);
  const auto store = launcher.surroundings->of_process(process);
  const std::string outcome = store->get(key, 1).value_or("");
  if (!outcome.empty() && outcome != "complete") return lose(process, outcome);
  world.met.insert(process.id);
  if (outcome.empty() && std::ssize(world.met) < world.world.size()) {
    if (now_s_ - process.since_s < kRendezvous_s) return;
    return lose(process, store->compare_set(key, "", "not all ranks came", 1));
  }
  if (outcome.empty() && store->compare_set(key, "", "complete", 1) != "complete") return;
  if (std::exchange(world.is_formed, true) == false) {
    ++num_worlds_;
    print(text("world ", process.generation, " is formed, of ", world.world.size()));
    check_state(world);
  }
  process.has_state = true;
  process.phase = Process::Phase::kTrains;
}

/// No world begins without state while a process that has it lives.
void SimulatedJob::check_state(const FormingWorld& world) {
  if (world.world.generation == 0 || trained_s_ == 0) return;
  for (const wire::ElasticMember& member : world.world.ranks) {
    const Process* process = find(member.id);
    if (process != nullptr && process->has_state) return;
  }
  for (const auto& launcher : launchers_) {
    if (launcher->is_dead || now_s_ < launcher->stopped_until_s + kSilent_s) continue;
    for (const auto& process : launcher->processes) {
      if (process->has_state && !process->has_ended() && !launcher->leaves)
        fail(text("world ", world.world.generation, " has no state, and ", process->id, " has it"));
    }
  }
  trained_s_ = 0;
  for (const auto& launcher : launchers_) {
    for (const auto& process : launcher->processes) process->has_state = false;
  }
}

void SimulatedJob::train(Launcher& launcher, Process& process) {
  FormingWorld& world = worlds_.at(process.generation);
  const auto is_lost = [&](const wire::ElasticMember& each) {
    const Process* other = find(each.id);
    const bool has_gone =
        other == nullptr || (other->has_ended() && other->state != wire::MemberState::kDone);
    return has_gone || other->generation != process.generation || other->phase == Process::Phase::kWaits;
  };
  if (process.stop_signal != 0) world.stops = true;
  if (process.asked > process.generation && world.leave_s == 0) world.leave_s = now_s_ + random(0.02, 0.3);
  if (world.is_done) return process.end(0, false);
  if (std::ranges::any_of(world.world.ranks, is_lost)) return lose(process, "a rank is gone");
  if (world.stops) return process.end(kStopped, true);
  if (world.leave_s > 0 && now_s_ > world.leave_s) return lose(process, "the next world was asked for");
  if (world.world.rank_of(process.id) != 0) return;
  trained_s_ += now_s_ - std::max(world.trained_until_s, process.since_s);
  world.trained_until_s = now_s_;
  world.is_done = trained_s_ >= needed_s_;
  if (!world.is_done) return;
  print(text("the work is done on host ", launcher.number));
}

void SimulatedJob::lose(Process& process, const std::string& cause) {
  process.phase = Process::Phase::kWaits;
  process.has_registered = false;
  process.cause = cause;
  process.next_s = now_s_ + random(0.01, 0.5);
}

/// As comm::run_elastic() does.
void SimulatedJob::wait_for_world(Launcher& launcher, Process& process) {
  if (process.stop_signal != 0) return process.end(process.is_spare ? 0 : static_cast<int>(kExitComm), false);
  const auto store = launcher.surroundings->of_process(process);
  const int next = process.generation + 1;
  if (!process.has_registered) {
    store->set(wire::waiting_member_key(next, process.id),
               to_text(wire::WaitingMember{.sizes = {}, .cause = process.cause}), 1);
    if (!process.is_spare) store->set(wire::lost_world_key(next - 1), process.cause, 1);
    process.has_registered = true;
  }
  auto told = store->get(wire::elastic_world_key(next), 1);
  if (const auto job = store->get(wire::kJobStateKey, 1); !told && job && options_.has_etcd) {
    const int present = wire::parse_job_state(*job).generation;
    if (present > next) told = store->get(wire::elastic_world_key(present), 1);
  }
  if (told) begin(launcher, process, wire::parse_elastic_world(*told));
}

}  // namespace trireme::cli
