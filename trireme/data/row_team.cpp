#include "trireme/data/internal/row_team.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "trireme/base/clock.h"

namespace trireme::data {
namespace {

struct Membership {
  RowTeam* team = nullptr;
  RowTeam::Batch batch = {};
};

thread_local Membership membership;

}  // namespace

void for_each_row(std::size_t count, const ReadRow& read) {
  // Rows inside a row are read by this thread only.
  const Membership mine = std::exchange(membership, {});
  const struct Restore {
    const Membership& to;
    ~Restore() { membership = to; }
  } restore{mine};
  if (mine.team != nullptr) return mine.team->read(mine.batch, count, read);
  for (std::size_t row = 0; row < count; ++row) read(row);
}

RowTeam::Scope::Scope(RowTeam& team, std::uint64_t number) {
  membership = {&team, {.number = number, .began_s = now_s()}};
}

RowTeam::Scope::~Scope() { membership = {}; }

void RowTeam::read(const Batch& batch, std::size_t count, const ReadRow& read) {
  std::size_t row = 0;
  double lasted_s = 0;
  // Reading the clock costs as much as a small row. It is read after 1, 2, 4, 8, ... rows.
  while (row < count && lasted_s <= alone_s_) {
    read(row++);
    if (std::has_single_bit(row)) lasted_s = now_s() - batch.began_s;
  }
  if (row == count) return;
  const auto at_once = static_cast<std::size_t>(alone_s_ * static_cast<double>(row) / lasted_s);
  Job job = {.number = batch.number,
             .count = count,
             .next = row,
             .at_once = std::max<std::size_t>(at_once, 1),
             .read = &read};
  read_with_others(job);
  if (job.error) std::rethrow_exception(job.error);
}

void RowTeam::read_with_others(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    const auto behind =
        std::ranges::find_if(open_, [&](const Job* other) { return other->number > job.number; });
    open_.insert(behind, &job);
  }
  opened_();
  std::unique_lock lock(mutex_);
  while (job.next < job.count) {
    const Rows rows = take();
    lock.unlock();
    read_rows(rows);
    lock.lock();
  }
  done_.wait(lock, [&] { return job.under_way == 0; });
}

bool RowTeam::has_open_rows() const {
  const std::lock_guard lock(mutex_);
  return !open_.empty();
}

void RowTeam::help() {
  std::unique_lock lock(mutex_);
  if (open_.empty()) return;
  const Rows rows = take();
  lock.unlock();
  read_rows(rows);
}

RowTeam::Rows RowTeam::take() {
  Job& job = *open_.front();
  const std::size_t begin = job.next;
  job.next = std::min(begin + job.at_once, job.count);
  ++job.under_way;
  if (job.next == job.count) open_.pop_front();
  return {&job, begin, job.next};
}

void RowTeam::read_rows(const Rows& rows) {
  std::exception_ptr error;
  std::size_t row = rows.begin;
  try {
    for (; row < rows.end; ++row) (*rows.job->read)(row);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  Job& job = *rows.job;
  if (error) {
    // Rows are taken in order. The lowest row that failed is therefore the first one that can fail.
    if (!job.error || row < job.failed_row) {
      job.error = error;
      job.failed_row = row;
    }
    if (job.next < job.count) open_.remove(&job);
    job.next = job.count;
  }
  if (--job.under_way == 0) done_.notify_all();
}

}  // namespace trireme::data
