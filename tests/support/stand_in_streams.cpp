#include "tests/support/stand_in_streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace trireme::test {
namespace {

std::uint64_t in(const StreamOrder::Clock& clock, const StreamOrder::Stream& stream) {
  const auto found = clock.find(stream);
  return found == clock.end() ? 0 : found->second;
}

std::string name_of(const StreamOrder::Stream& stream) {
  return "stream " + std::to_string(stream.second) + " of device " + std::to_string(stream.first);
}

}  // namespace

void StreamOrder::merge(Clock& into, const Clock& passed) {
  for (const auto& [stream, time] : passed) into[stream] = std::max(into[stream], time);
}

StreamOrder::Clock& StreamOrder::next(const Stream& stream) {
  Clock& clock = clocks_[stream];
  merge(clock, host_);
  ++clock[stream];
  return clock;
}

void StreamOrder::check(bool comes_behind, const Stream& stream, const Stream& other,
                        const std::string& operation, const char* did) {
  TORCH_CHECK(comes_behind, "the stand-in device: ", operation, " on ", name_of(stream), " uses memory that ",
              name_of(other), " has ", did,
              ", and does not wait for it: record an event there, and let this one block on it");
}

StreamOrder::Piece* StreamOrder::use(const void* piece, const Stream& stream, const std::string& operation) {
  const auto found = pieces_.find(piece);
  if (found == pieces_.end()) return nullptr;
  const Piece& used = found->second;
  check(in(next(stream), used.writer) >= used.written, stream, used.writer, operation, "written");
  return &found->second;
}

void StreamOrder::read(const void* piece, const Stream& stream, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  if (Piece* used = use(piece, stream, operation)) used->readers[stream] = in(clocks_[stream], stream);
}

void StreamOrder::write(const void* piece, const Stream& stream, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  Piece* used = use(piece, stream, operation);
  if (used == nullptr) return;
  const Clock& clock = clocks_[stream];
  for (const auto& [reader, time] : used->readers)
    check(in(clock, reader) >= time, stream, reader, operation, "read");
  used->writer = stream;
  used->written = in(clock, stream);
  used->readers.clear();
}

void StreamOrder::allocated(const void* piece, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const Clock& clock = next(stream);
  pieces_[piece] = {.owner = stream, .writer = stream, .written = in(clock, stream)};
}

void StreamOrder::lent(const void* piece, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(piece);
  if (found != pieces_.end()) found->second.lent[stream] = true;
}

void StreamOrder::given_back(const void* piece) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(piece);
  if (found == pieces_.end()) return;
  const Piece used = found->second;
  pieces_.erase(found);
  Clock owner = clocks_[used.owner];
  merge(owner, host_);
  Clock users = used.readers;
  merge(users, {{used.writer, used.written}});
  for (const auto& [user, time] : users) {
    if (user == used.owner || used.lent.contains(user) || in(owner, user) >= time) continue;
    std::fprintf(stderr,
                 "the stand-in device: memory of %s is given back while %s may still use it: record it on "
                 "that stream\n",
                 name_of(used.owner).c_str(), name_of(user).c_str());
    std::abort();
  }
}

StreamOrder::Clock StreamOrder::now(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[stream];
}

void StreamOrder::wait(const Stream& stream, const Clock& passed) {
  const std::lock_guard lock(mutex_);
  merge(clocks_[stream], passed);
}

void StreamOrder::host_waits(const Clock& passed) {
  const std::lock_guard lock(mutex_);
  merge(host_, passed);
}

void StreamOrder::host_waits_for_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, clock] : clocks_) merge(host_, clock);
}

}  // namespace trireme::test
