#include "cli/launch/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/launch/rank_end.h"
#include "trireme/autopsy/signals.h"
#include "trireme/autopsy/verdict.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

// Other processes may keep a rank's pipes open. The rank's own last output is available at once.
constexpr double kDrain_s = 0.2;
constexpr double kLookAgain_s = 0.5;
constexpr int kMostServerRestarts = 20;
constexpr std::size_t kMostNamed = 16;
constexpr double kFollowJob_s = 0.1, kFollowWhileLost_s = 0.01;

std::string prefix_of(const LaunchOptions& options, const RankProcess& process) {
  if (!options.prefix_output) return "";
  return process.is_spare() ? "[spare] " : text("[", process.rank(), "] ");
}

std::string name_of(const RankProcess& process) {
  return process.is_spare() ? "a spare" : text("rank ", process.rank());
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, Screen& screen, SignalQueue& signals, Notes& notes,
                       const Keep& keep, ParameterCluster* servers, ElasticJob* job)
    : options_(options),
      screen_(screen),
      signals_(signals),
      notes_(notes),
      keep_(keep),
      servers_(servers),
      job_(job),
      witness_(job != nullptr ? job->host().world().size() : options.num_nodes * options.num_ranks),
      told_to_stop_(job != nullptr && job->host().is_leaving() ? SIGTERM : 0) {
  started_s_ = looked_s_ = now_s();
  oom_kills_before_ = count_oom_kills();
}

void Supervisor::start(const std::vector<RankStart>& starts) {
  for (const auto& start : starts) {
    auto process = std::make_unique<RankProcess>(start);
    if (!process->is_spare()) witness_.add(*process);
    const std::string prefix = prefix_of(options_, *process);
    const auto bars = screen_.shows_bars() && start.rank == 0 ? LineRelay::Bars::kYes : LineRelay::Bars::kNo;
    LineRelay out(screen_, process->out_fd(), STDOUT_FILENO, prefix, bars);
    LineRelay err(screen_, process->err_fd(), STDERR_FILENO, prefix, LineRelay::Bars::kNo);
    members_.push_back({.process = std::move(process), .out = std::move(out), .err = std::move(err)});
  }
}

void Supervisor::adopt(std::vector<SupervisedRank> ranks) {
  for (SupervisedRank& member : ranks) {
    RankProcess& process = *member.process;
    process.set_rank(job_->host().world().rank_of(process.member().id));
    if (!process.is_spare()) witness_.add(process);
    member.out.set_prefix(prefix_of(options_, process));
    member.err.set_prefix(prefix_of(options_, process));
    members_.push_back(std::move(member));
  }
}

std::vector<SupervisedRank> Supervisor::release() {
  for (auto& member : members_) {
    if (!member.process->ended()) continue;
    member.out.finish();
    member.err.finish();
  }
  std::erase_if(members_, [](const Member& member) { return member.process->ended(); });
  return std::exchange(members_, {});
}

std::vector<telemetry::LiveRank> Supervisor::ranks() const {
  std::vector<telemetry::LiveRank> ranks;
  for (const auto& member : members_)
    if (!member.process->is_spare())
      ranks.push_back({.pid = member.process->pid(), .page = member.process->page()});
  return ranks;
}

WorldStory Supervisor::run() {
  while (!is_over() && !next_world_) {
    const bool timed =
        phase_ == Phase::kSettling || phase_ == Phase::kStopping || phase_ == Phase::kInterrupted;
    const double most_s = job_ == nullptr                ? kLookAgain_s
                          : phase_ == Phase::kRegrouping ? kFollowWhileLost_s
                                                         : kFollowJob_s;
    wait_and_relay(timed ? std::min(most_s, std::max(0.0, phase_ends_s_ - now_s())) : most_s);
    show_notes();
    handle_signals();
    look_after_ranks();
    look_for_stalls();
    look_after_servers();
    look_after_the_frozen();
    advance();
    if (job_ != nullptr) follow_job();
  }
  if (next_world_) return story();
  end_spares();
  drain();
  show_notes();
  tell_cause();
  return story();
}

/// In an elastic job, other ranks may follow after all have ended, until the job ends.
bool Supervisor::is_over() const {
  const bool is_final =
      job_ == nullptr || told_to_stop_ != 0 || job_exit_code_ != 0 || job_->host().job().end.has_value();
  return is_final && all_ended();
}

void Supervisor::show_notes() {
  for (const auto& note : notes_.take()) screen_.note(note);
}

bool Supervisor::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.process->ended() || m.process->is_spare(); });
}

void Supervisor::wait_and_relay(double timeout_s) {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
  for (const auto& member : members_) {
    polled.push_back({member.out_open ? member.process->out_fd() : -1, POLLIN, 0});
    polled.push_back({member.err_open ? member.process->err_fd() : -1, POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), static_cast<int>(timeout_s * 1000) + 1) <= 0) return;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (polled[2 * i + 1].revents != 0) member.out_open = member.out.pump();
    if (polled[2 * i + 2].revents != 0) member.err_open = member.err.pump();
  }
}

void Supervisor::handle_signals() {
  for (int signal = signals_.next(); signal != 0; signal = signals_.next()) {
    if (signal == SIGCHLD) continue;
    if (signal == SIGUSR1) {
      for (auto& member : members_) member.process->send_signal(signal);
    } else if (signal == SIGTSTP) {
      pause();
    } else {
      interrupt(signal);
    }
  }
}

/// Ctrl-Z reaches the launcher only, as ranks have their own process groups. Running ranks would block once
/// their output is not read, and time out for each other.
void Supervisor::pause() {
  std::vector<const RankProcess*> paused;
  for (const auto& member : members_) {
    if (member.process->frozen()) continue;
    member.process->send_signal(SIGSTOP);
    paused.push_back(member.process.get());
  }
  ::raise(SIGSTOP);
  for (const auto* rank : paused) rank->send_signal(SIGCONT);
}

void Supervisor::interrupt(int signal) {
  if (told_to_stop_ != 0) {
    screen_.note(text(autopsy::signal_name(signal), " again: killing all ranks"));
    stop_all(SIGKILL);
    enter(Phase::kKilling, 0);
    return;
  }
  told_to_stop_ = signal;
  witness_.note_stop(signal, signals_.sender());
  if (job_ != nullptr && signal == SIGTERM && job_->can_leave()) {
    screen_.note("SIGTERM: this host leaves the job; SIGTERM again kills its ranks");
    job_->host().leave();
    return ask_ranks();  // at once, before the leader requests the next world
  }
  screen_.note(text(autopsy::signal_name(signal), ": stopping ", members_.size(), " rank(s)",
                    signal == SIGINT ? "; Ctrl-C again kills them" : ""));
  stop_all(signal);
  if (phase_ != Phase::kKilling) enter(Phase::kInterrupted, options_.interrupt_grace_s);
}

void Supervisor::look_after_ranks() {
  for (auto& member : members_) {
    for (auto change = member.process->look(); change != RankProcess::Change::kNone;
         change = member.process->look()) {
      note_change(member, change);
    }
  }
}

void Supervisor::note_change(Member& member, RankProcess::Change change) {
  const auto& rank = *member.process;
  if (phase_ == Phase::kRunning && change == RankProcess::Change::kStopped) {
    screen_.note(
        text(name_of(rank), " (pid ", rank.pid(), ") was frozen by ", autopsy::signal_name(rank.stopped_by()),
             "; the others wait for it until their deadline (kill -CONT ", rank.pid(), " continues it)"));
  } else if (phase_ == Phase::kRunning && change == RankProcess::Change::kContinued) {
    screen_.note(text(name_of(rank), " continues"));
  } else if (change == RankProcess::Change::kEnded &&
             (WIFSIGNALED(rank.wait_status()) || WEXITSTATUS(rank.wait_status()) != 0)) {
    fail(rank);
  }
}

void Supervisor::fail(const RankProcess& rank) {
  if (job_ != nullptr && job_->can_leave() && cannot_join(job_->host(), rank)) return leave_as_unfit(rank);
  const bool is_final = job_ != nullptr && ends_the_job(job_->host(), rank);
  if (phase_ == Phase::kRegrouping && is_final) return enter(Phase::kSettling, options_.settle_s);
  if (phase_ != Phase::kRunning) return;
  if (rank.is_spare()) return screen_.note(text("a spare (pid ", rank.pid(), ") has ended"));
  witness_.note_failure();
  if (job_ == nullptr || is_final) return enter(Phase::kSettling, options_.settle_s);
  job_->host().give_up(text("rank ", rank.rank(), " (pid ", rank.pid(), ") has ended"));
  begin_regrouping();
}

/// The others continue without this host. Its ranks have not trained, so they have no state.
void Supervisor::leave_as_unfit(const RankProcess& rank) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kRegrouping) return;
  screen_.note(name_of(rank) + " cannot take part in the job: this host leaves it, and the others continue");
  witness_.note_failure();
  job_->host().give_up(text("rank ", rank.rank(), " cannot take part in the job, and its host leaves it"));
  job_->host().leave();
  job_exit_code_ = kExitUsage;
  stop_all(SIGKILL);
  enter(Phase::kKilling, 0);
}

void Supervisor::begin_regrouping() {
  witness_.note_failure();
  enter(Phase::kRegrouping, 0);
}

std::vector<wire::MemberReport> Supervisor::member_reports() const {
  std::vector<wire::MemberReport> reports;
  for (const auto& member : members_) {
    if (member.process->status().step > 0) job_->host().note_training();
    reports.push_back(report_of(job_->host(), *member.process));
  }
  return reports;
}

/// Reports to the leader of the job, and applies the state of the job. Ends run() if the next world has been
/// formed.
void Supervisor::follow_job() {
  ElasticHost& host = job_->host();
  const bool continues = job_->exchange(member_reports());
  if (told_to_stop_ != 0 && !host.is_leaving()) job_->stop(told_to_stop_);
  if (!continues) return follow_end({.exit_code = kExitComm, .reason = job_->why_over()});
  if (host.job().end) return follow_end(*host.job().end);
  const bool goes_on = phase_ == Phase::kRunning || phase_ == Phase::kRegrouping;
  if (!goes_on) return;
  if (host.job().stop_signal != 0) {
    told_to_stop_ = host.job().stop_signal;
    stop_all(told_to_stop_);
    return enter(Phase::kInterrupted, options_.interrupt_grace_s);
  }
  if (host.is_leaving() && now_s() - host.left_s() >= options_.interrupt_grace_s) {
    screen_.note(
        text("no next world within ", human_duration(options_.interrupt_grace_s), ": killing all ranks"));
    stop_all(SIGKILL);
    return enter(Phase::kKilling, 0);
  }
  if (phase_ == Phase::kRunning && host.is_lost()) begin_regrouping();
  const bool is_regrouping = phase_ == Phase::kRegrouping;
  if (host.next_world()) {
    if (is_regrouping &&
        std::ranges::any_of(members_, [](const Member& each) { return each.process->ended(); }))
      tell_cause();
    next_world_ = host.next_world();
  } else if (is_regrouping) {
    end_those_who_do_not_come();
  } else {
    ask_ranks();
  }
}

/// Signals the requested next world to the ranks, and whether this host will be in it.
void Supervisor::ask_ranks() {
  const ElasticHost& host = job_->host();
  if (!host.job().wants_next && !host.is_leaving()) return;
  const int generation = host.world().generation + (host.job().wants_next ? 1 : 0);
  for (auto& member : members_)
    member.process->ask_for_generation(generation | (host.is_leaving() ? wire::kHostLeaves : 0));
}

void Supervisor::follow_end(const wire::JobEnd& end) {
  const bool ends_already = told_to_stop_ != 0 && !job_->host().is_leaving();
  // If all ranks are done, a process that is not, or has failed, has no rank in the last world.
  for (const Member& each : members_) {
    const bool is_done = each.process->ended() && each.process->wait_status() == 0;
    if (end.exit_code == 0 && !is_done) each.process->set_rank(-1);
  }
  if (end.exit_code == 0 || job_exit_code_ != 0 || ends_already) return;
  job_exit_code_ = end.exit_code;
  if (end.exit_code > 128) {  // its ranks end by their own agreement
    told_to_stop_ = end.exit_code - 128;
    witness_.note_stop(told_to_stop_, /*sender=*/0);
    return enter(Phase::kInterrupted, options_.interrupt_grace_s);
  }
  if (phase_ != Phase::kRunning && phase_ != Phase::kRegrouping) return;
  screen_.note("the job ends: " + end.reason);
  enter(Phase::kSettling, options_.settle_s);
}

/// Ends ranks that the others have given up.
void Supervisor::end_those_who_do_not_come() {
  std::vector<Member*> late;
  for (auto& member : members_) {
    const RankProcess& process = *member.process;
    if (process.ended() || process.is_spare() || job_->host().waits(process.member().id)) continue;
    late.push_back(&member);
  }
  const bool all_are_frozen = std::ranges::all_of(late, [](const Member* m) { return m->process->frozen(); });
  if (late.empty() || !job_->host().is_lost()) return static_cast<void>(all_but_some_wait_s_ = 0);
  if (all_but_some_wait_s_ == 0) all_but_some_wait_s_ = now_s();
  const double grace_s = all_are_frozen ? 0 : options_.frozen_grace_s;
  if ((grace_s == 0 && !all_are_frozen) || now_s() - all_but_some_wait_s_ < grace_s) return;
  for (Member* member : late) {
    if (std::exchange(member->came_too_late, true)) continue;  // SIGKILL is sent already
    if (member->process->frozen()) member->frozen_by = member->process->stopped_by();
    screen_.note(text("rank ", member->process->rank(), " (pid ", member->process->pid(),
                      ") does not come to the next world", member->frozen_by != 0 ? ": it is frozen" : "",
                      "; killing it"));
    member->process->send_signal(SIGKILL);
  }
}

/// Spares are not needed any more.
void Supervisor::end_spares() {
  for (auto& member : members_) {
    if (member.process->is_spare()) member.process->send_signal(SIGKILL);
  }
  std::erase_if(members_, [](const Member& member) { return member.process->is_spare(); });
}

void Supervisor::look_for_stalls() {
  if (phase_ != Phase::kRunning || now_s() - witnessed_s_ < kLookAgain_s) return;
  witnessed_s_ = now_s();
  std::optional<autopsy::Evidence> found;
  const std::string line = witness_.look(&found);
  if (found) keep_(*found);  // the file exists before the line is printed
  if (!line.empty()) screen_.note(line);
}

/// Restarts servers. The others have copies of the lost state, and return them.
void Supervisor::look_after_servers() {
  if (servers_ == nullptr) return;
  for (const int number : servers_->ended()) {
    const bool is_coordinator = number == ParameterCluster::kCoordinator;
    const std::string who = is_coordinator ? "the coordinator of the parameter server"
                                           : text("server ", number, " of the parameter server");
    if (++num_server_restarts_ > kMostServerRestarts) {
      screen_.note(text(who, " has ended; after ", kMostServerRestarts, " restarts no more"));
      continue;
    }
    screen_.note(text(who, " has ended; starting it again"));
    is_coordinator ? servers_->start_coordinator() : servers_->start_server(number);
  }
}

/// Waiting ranks detect a frozen one themselves, but only if a rank of this launcher runs. A user who pauses
/// a run stops the launcher as well, so such time does not count.
void Supervisor::look_after_the_frozen() {
  const double passed_s = std::min(now_s() - looked_s_, 2 * kLookAgain_s);
  looked_s_ = now_s();
  bool none_runs = !all_ended(), all_for_long = options_.frozen_grace_s > 0;
  for (auto& member : members_) {
    if (member.process->ended()) continue;
    member.frozen_for_s = member.process->frozen() ? member.frozen_for_s + passed_s : 0;
    none_runs = none_runs && member.process->frozen();
    all_for_long = all_for_long && member.frozen_for_s >= options_.frozen_grace_s;
  }
  if (phase_ != Phase::kRunning || !none_runs) return static_cast<void>(said_none_runs_ = false);
  if (!std::exchange(said_none_runs_, true)) say_none_runs();
  if (!all_for_long) return;
  for (auto& member : members_) {
    RankProcess& rank = *member.process;
    if (rank.ended() || std::exchange(member.came_too_late, true)) continue;
    screen_.note(text("rank ", rank.rank(), " (pid ", rank.pid(), ") has been frozen for ",
                      human_duration(member.frozen_for_s), " and no rank of this launcher runs: ending it"));
    if (job_ == nullptr) continue;
    member.frozen_by = rank.stopped_by();  // the job continues without it; SIGTERM would end the job
    rank.send_signal(SIGKILL);
  }
  if (job_ != nullptr) return;
  stop_all(SIGTERM);
  enter(Phase::kStopping, options_.stop_grace_s);
}

void Supervisor::say_none_runs() const {
  std::vector<std::string> who, pids;
  for (const auto& member : members_) {
    if (member.process->ended()) continue;
    if (who.size() < kMostNamed)
      who.push_back(text("rank ", member.process->rank(), " (pid ", member.process->pid(), ")"));
    pids.push_back(text(member.process->pid()));
  }
  if (pids.size() > kMostNamed) who.push_back(text("and ", pids.size() - kMostNamed, " more"));
  const bool all = pids.size() == members_.size();
  screen_.note(text(all ? "all ranks" : "all that are left of the ranks", " of this launcher are frozen: ",
                    join(who), "; kill -CONT ", join(pids, " "), " continues them. ",
                    options_.frozen_grace_s > 0
                        ? text("Otherwise they are ended after ", human_duration(options_.frozen_grace_s),
                               " (--frozen-grace), in which a launcher that is stopped itself does not count")
                        : "They are waited for without end (--frozen-grace 0)"));
}

void Supervisor::enter(Phase phase, double lasts_s) {
  phase_ = phase;
  phase_ends_s_ = now_s() + lasts_s;
}

void Supervisor::advance() {
  if (phase_ == Phase::kRunning || phase_ == Phase::kRegrouping || phase_ == Phase::kKilling ||
      now_s() < phase_ends_s_)
    return;
  if (phase_ == Phase::kSettling) {
    tell_cause();
    stop_all(SIGTERM);
    enter(Phase::kStopping, options_.stop_grace_s);
  } else {
    stop_all(SIGKILL);
    enter(Phase::kKilling, 0);
  }
}

void Supervisor::stop_all(int signal) {
  for (auto& member : members_) {
    if (member.process->ended()) continue;
    if (member.process->frozen()) member.frozen_by = member.process->stopped_by();
    member.stopped = true;
    member.process->send_signal(signal);
    member.process->send_signal(SIGCONT);  // a frozen one could not take the signal
  }
}

void Supervisor::drain() {
  const auto deadline = Deadline::after_s(kDrain_s);
  const auto open = [](const Member& member) { return member.out_open || member.err_open; };
  while (!deadline.expired() && std::any_of(members_.begin(), members_.end(), open)) {
    wait_and_relay(deadline.remaining_s());
    handle_signals();
  }
  for (auto& member : members_) {
    member.out.finish();
    member.err.finish();
  }
}

/// Reports once when the first failure has settled, and again if the end shows another cause.
void Supervisor::tell_cause() {
  const WorldStory world = story();
  if (exit_code_of(world) == kExitOk || (job_exit_code_ != 0 && culprit(world) == nullptr)) return;
  std::vector<std::vector<std::string>> lines;
  for (const auto& member : members_)
    if (!member.process->is_spare()) lines.push_back(member.err.last_lines());
  const autopsy::Evidence evidence = witness_.end(world, lines);
  autopsy::Verdict verdict = autopsy::judge(evidence);
  if (verdict.cause.empty()) return;
  if (phase_ == Phase::kRegrouping) verdict.advice.clear();  // the run continues without the user
  keep_(evidence);
  if (std::exchange(told_cause_, verdict.summary) != verdict.summary)
    screen_.note("autopsy: " + autopsy::paragraph(verdict));
}

WorldStory Supervisor::story() const {
  WorldStory world{.ranks = {},
                   .told_to_stop = told_to_stop_,
                   .job_exit_code = job_exit_code_,
                   .oom_kills = count_oom_kills() - oom_kills_before_};
  for (const auto& member : members_) {
    const auto& process = *member.process;
    if (process.is_spare()) continue;
    world.ranks.push_back({.rank = process.rank(),
                           .pid = process.pid(),
                           .wait_status = process.wait_status(),
                           .ended_s = process.ended_s() - started_s_,
                           .frozen_by = member.frozen_by,
                           .stopped = member.stopped,
                           .status = process.status(),
                           .ended = process.ended()});
  }
  return world;
}

}  // namespace trireme::cli
