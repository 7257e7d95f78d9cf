#include "trireme/comm/internal/finishing_work.h"

#include <c10/util/Exception.h>

#include <stdexcept>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/wire/group_error.h"

namespace trireme::comm {

FinishingWork::FinishingWork(comm::Work below, std::function<std::string()> describe,
                             std::function<void()> finish)
    : c10d::Work(-1, below->retrieveOpType()),
      below_(std::move(below)),
      describe_(std::move(describe)),
      finish_(std::move(finish)) {}

bool FinishingWork::wait(std::chrono::milliseconds timeout) {
  const bool waited = wait_below(timeout);
  const std::lock_guard lock(mutex_);
  if (const auto finish = std::exchange(finish_, nullptr)) finish();
  return waited;
}

bool FinishingWork::wait_below(std::chrono::milliseconds timeout) const {
  try {
    return below_->wait(timeout);
  } catch (const wire::GroupError& error) {
    if (error.kind() == wire::GroupError::Kind::kGivenUp) throw;
    throw wire::GroupError(error.kind(), error.group(), text(error.what(), describe_()));
  } catch (const Error&) {
    throw;  // already has an explanation
  } catch (const c10::Error& error) {
    throw std::runtime_error(text(error.what_without_backtrace(), describe_()));
  } catch (const std::exception& error) {
    throw std::runtime_error(text(error.what(), describe_()));
  }
}

}  // namespace trireme::comm
