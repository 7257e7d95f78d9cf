#include "trireme/data/tolerant.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "trireme/base/clock.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kMaxInARow = 50;

/// Returns the result of `read`, which is repeated up to `retries` times if it throws ReadError.
template <class Read>
auto retry(const ToleranceOptions& options, const Read& read) {
  double pause_s = options.first_pause_s;
  for (std::int64_t left = options.retries;; --left, pause_s *= 2) {
    try {
      return read();
    } catch (const ReadError&) {
      if (left == 0) throw;
      count_retry();
      std::this_thread::sleep_for(Seconds(pause_s));
    }
  }
}

class RetryingDataset : public Dataset {
 public:
  RetryingDataset(std::shared_ptr<const Dataset> samples, const ToleranceOptions& options)
      : samples_(std::move(samples)), options_(options), said_(std::make_shared<Said>()) {}

  std::int64_t size() const override { return samples_->size(); }
  bool sizes_vary() const override { return samples_->sizes_vary(); }
  double cost(std::int64_t index) const override { return samples_->cost(index); }
  std::vector<std::int64_t> shard_ends() const override { return samples_->shard_ends(); }

  Example get(std::int64_t index) const override {
    Example sample;
    find_readable(index, [&](std::int64_t number) { sample = samples_->get(number); });
    return sample;
  }

  Example get_batch(std::span<const std::int64_t> indices) const override {
    try {
      return retry(options_, [&] { return samples_->get_batch(indices); });
    } catch (const DataError& reason) {
      if (!options_.skip) advise(reason);
    }
    std::vector<std::int64_t> readable;
    for (const std::int64_t index : indices)
      readable.push_back(find_readable(index, [&](std::int64_t number) { samples_->get(number); }));
    return retry(options_, [&] { return samples_->get_batch(readable); });
  }

  /// With `skip`, a replaced sample has another target. Only a read shows whether it is replaced.
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    if (options_.skip) return get_batch(indices).target;
    try {
      return retry(options_, [&] { return samples_->get_targets(indices); });
    } catch (const DataError& reason) {
      advise(reason);
    }
  }

  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    auto as_it_is = samples_->in_epoch(epoch);
    if (!as_it_is) return nullptr;
    auto view = std::make_shared<RetryingDataset>(*this);
    view->samples_ = std::move(as_it_is);
    return view;
  }

 private:
  struct Said {
    std::mutex mutex;
    std::set<std::int64_t> samples;
  };

  [[noreturn]] static void advise(const DataError& reason) {
    throw DataError(text(reason.what(), "; repair or remove it, or set data.undecodable = \"skip\""));
  }

  /// The first sample from `index` on that `read` does not fail for.
  template <class Read>
  std::int64_t find_readable(std::int64_t index, const Read& read) const {
    for (std::int64_t tried = 0;; ++tried) {
      const std::int64_t number = (index + tried) % size();
      try {
        retry(options_, [&] { return read(number); });
        return number;
      } catch (const DataError& reason) {
        if (!options_.skip) advise(reason);
        if (tried + 1 == std::min(kMaxInARow, size())) {
          throw DataError(text(reason.what(), "; it is the last of ", tried + 1,
                               " samples in a row that cannot be read: is this the right data?"));
        }
        count_skipped();
        say_once(number, reason);
      }
    }
  }

  void say_once(std::int64_t number, const DataError& reason) const {
    const std::lock_guard lock(said_->mutex);
    if (!said_->samples.insert(number).second) return;
    options_.log.warning("sample ", number, " cannot be read: ", reason.what(),
                         "; the next one stands in for it");
  }

  std::shared_ptr<const Dataset> samples_;
  ToleranceOptions options_;
  std::shared_ptr<Said> said_;  ///< shared by all views
};

}  // namespace

std::shared_ptr<const Dataset> with_retries(std::shared_ptr<const Dataset> samples,
                                            const ToleranceOptions& options) {
  require(options.retries >= 0, "a read is repeated 0 times at least, not ", options.retries);
  require(options.first_pause_s >= 0, "a pause cannot be of ", options.first_pause_s, " s");
  return std::make_shared<RetryingDataset>(std::move(samples), options);
}

DataSource with_retries(DataSource source, const DataOptions& options, const Log& log) {
  const ToleranceOptions tolerance = {
      .retries = static_cast<int>(options.retries), .skip = options.undecodable == "skip", .log = log};
  if (auto numbered = std::dynamic_pointer_cast<const Dataset>(source.train))
    source.train = with_retries(std::move(numbered), tolerance);
  if (source.test) source.test = with_retries(source.test, tolerance);
  return source;
}

}  // namespace trireme::data
