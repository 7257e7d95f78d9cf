#include "trireme/topology/meeting.h"

#include <set>
#include <utility>

namespace trireme::topology {

Meeting::Meeting(wire::StoreClient& store, MeetingOptions options)
    : store_(store), options_(std::move(options)) {}

std::string Meeting::key(int rank) const { return text(options_.prefix, "/", turn_, "/", rank); }

void Meeting::wait_for_all(const std::string& what) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size(); ++rank) keys.push_back(key(rank));
  if (store_.wait(keys, options_.timeout_s)) return;
  std::vector<std::string> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (!store_.check({key(rank)}, options_.timeout_s)) missing.push_back(std::to_string(rank));
  }
  if (missing.empty()) return;
  throw CommError(text(missing.size() == 1 ? "rank " : "ranks ", join(missing), " of ", size(), " did not ",
                       what, " within ", human_duration(options_.timeout_s),
                       ": see why there, or raise --timeout"));
}

std::vector<std::string> Meeting::gather(const std::string& mine, const std::string& what) {
  ++turn_;
  store_.set(key(rank()), mine, options_.timeout_s);
  wait_for_all(what);
  std::vector<std::string> all;
  for (int rank = 0; rank < size(); ++rank)
    all.push_back(store_.get(key(rank), options_.timeout_s).value_or(""));
  return all;
}

void Meeting::end_round(const std::string& problem, const std::string& what) {
  ++turn_;
  // Problems of this round. A faster rank may report one of the next round before the slowest reads these.
  const std::string problems = text(options_.prefix, "/", turn_, "/problems");
  if (!problem.empty()) store_.add(problems, 1, options_.timeout_s);
  store_.set(key(rank()), problem, options_.timeout_s);
  wait_for_all(what);
  if (!store_.get(problems, options_.timeout_s)) return;
  std::set<std::string> said;
  for (int rank = 0; rank < size(); ++rank) {
    const std::string theirs = store_.get(key(rank), options_.timeout_s).value_or("");
    if (!theirs.empty()) said.insert(theirs);
  }
  throw CommError(join(std::vector<std::string>(said.begin(), said.end()), "; "));
}

}  // namespace trireme::topology
