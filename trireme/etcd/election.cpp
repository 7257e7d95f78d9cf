#include "trireme/etcd/internal/election.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>

namespace trireme::etcd {
namespace {

constexpr std::int64_t kMinLease_s = 2;
constexpr double kTriesPerLease = 5;  // to keep it alive: a silent member costs one try

std::int64_t in_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

Election::Election(ElectionOptions options)
    : options_(std::move(options)),
      lease_s_(static_cast<std::int64_t>(std::ceil(options_.lease_s))),
      client_(options_.members, options_.try_s) {
  require(lease_s_ >= kMinLease_s, "a lease of ", options_.lease_s, " s is too short: etcd's shortest is ",
          kMinLease_s, " s");
  thread_ = std::jthread([this](std::stop_token stop) { serve(std::move(stop)); });
  pthread_setname_np(thread_.native_handle(), "trireme-leader");
}

Election::~Election() {
  thread_.request_stop();
  thread_.join();
}

std::shared_ptr<Term> Election::term() const {
  const std::lock_guard lock(mutex_);
  return term_;
}

std::string Election::leader() const {
  const std::lock_guard lock(mutex_);
  return leader_;
}

void Election::note_leader(std::string address) {
  const std::lock_guard lock(mutex_);
  leader_ = std::move(address);
}

void Election::resign() {
  const std::lock_guard lock(mutex_);
  resigns_ = term_ != nullptr;
  woken_.notify_all();
}

void Election::stand_down() {
  {
    const std::lock_guard lock(mutex_);
    stands_down_ = true;
  }
  resign();
}

bool Election::stands_down() const {
  const std::lock_guard lock(mutex_);
  return stands_down_;
}

void Election::set(std::shared_ptr<Term> term) {
  {
    const std::lock_guard lock(mutex_);
    term_ = std::move(term);
    resigns_ = false;
  }
  options_.changed();
}

void Election::serve(std::stop_token stop) {
  const auto rest = [&](double seconds) {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, stop, Seconds(seconds), [&] { return resigns_; });
    return resigns_;
  };
  const double keep_s = static_cast<double>(lease_s_) / kTriesPerLease;
  while (!stop.stop_requested()) {
    std::shared_ptr<Term> term;
    try {
      term = campaign();
      last_trouble_.clear();
    } catch (const Error& error) {
      say(error.what());
    }
    if (!term) {
      rest(options_.look_s);
      continue;
    }
    set(term);
    bool resigned = stands_down();
    while (term->holds() && !stop.stop_requested() && !resigned) {
      resigned = rest(std::min(keep_s, 1.0));
      if (resigned || stop.stop_requested()) break;
      try {
        keep(*term);
      } catch (const Error& error) {
        say(error.what());
      }
    }
    const bool is_left = term->holds();
    term->lose();
    set(nullptr);
    if (is_left) give_back(*term);
    if (resigned && !stands_down()) rest(static_cast<double>(lease_s_));
  }
}

/// Null if another process leads.
std::shared_ptr<Term> Election::campaign() {
  const auto present = client_.get(options_.key);
  note_leader(present ? present->value : "");
  if (present || stands_down()) return nullptr;
  const std::int64_t asked_ns = now_ns();
  const LeaseId lease = client_.grant(lease_s_);
  const Transaction transaction = {
      .when = {{.key = options_.key, .what = Transaction::Condition::What::kCreated, .is = 0}},
      .writes = {{.key = options_.key, .value = options_.address, .lease = lease}},
      .removals = {}};
  const Outcome outcome = client_.commit(transaction);
  Revision made_at = outcome.revision;
  if (!outcome.happened) {
    // An earlier try of this request may have succeeded.
    const auto& leader = outcome.instead.at(0);
    const bool is_mine = leader && leader->lease == lease;
    if (!is_mine) {
      client_.revoke(lease);
      return nullptr;
    }
    made_at = leader->created;
  }
  note_leader(options_.address);
  return std::make_shared<Term>(options_.key, made_at, lease,
                                asked_ns + in_ns(static_cast<double>(lease_s_)));
}

void Election::keep(Term& term) {
  const std::int64_t asked_ns = now_ns();
  if (!client_.keep_alive(term.lease())) return term.lose();
  term.extend(asked_ns + in_ns(static_cast<double>(lease_s_)));
  const auto leader = client_.get(options_.key);  // an operator may have removed the key
  note_leader(leader ? leader->value : "");
  if (!leader || leader->created != term.made_at()) term.lose();
  last_trouble_.clear();
}

void Election::give_back(const Term& term) {
  try {
    client_.revoke(term.lease());
  } catch (const Error& error) {
    say(error.what());  // the lease expires by itself a little later
  }
}

void Election::say(const std::string& trouble) {
  if (trouble == std::exchange(last_trouble_, trouble)) return;
  options_.trouble(trouble);
}

}  // namespace trireme::etcd
