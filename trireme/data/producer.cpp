#include "trireme/data/producer.h"

#include <ATen/ops/empty.h>
#include <pthread.h>

#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/internal/produced_stream.h"

namespace trireme::data {
namespace {

/// The result of open(): the stream and the threads that fill it.
class OpenProducer : public BatchStream {
 public:
  OpenProducer(const ProducedOptions& data, std::shared_ptr<Producer> producer,
               std::shared_ptr<ProducedStream> stream)
      : data_(data), producer_(std::move(producer)), stream_(std::move(stream)) {}

  ~OpenProducer() override {
    stream_->close();
    for (std::thread& thread : threads_) thread.join();
  }

  void seek(std::uint64_t step) override { stream_->seek(step); }
  void assign_shares(std::uint64_t from, const Shares& shares) override {
    stream_->assign_shares(from, shares);
  }
  LoadingReport report() const override { return stream_->report(); }
  bool is_ready() const override { return stream_->is_ready(); }

  StepBatch next() override {
    for (auto i = static_cast<int>(threads_.size()); i < data_.threads; ++i) {
      threads_.emplace_back([this, i] {
        ::pthread_setname_np(::pthread_self(), text("make-", i).c_str());
        std::exception_ptr error;
        try {
          data_.produce(*producer_);
        } catch (...) {
          error = std::current_exception();
        }
        stream_->thread_ended(error);
      });
    }
    return stream_->next();
  }

 private:
  const ProducedOptions& data_;
  const std::shared_ptr<Producer> producer_;
  const std::shared_ptr<ProducedStream> stream_;
  std::vector<std::thread> threads_;
};

}  // namespace

bool Producer::serve(const std::shared_ptr<ProducedStream>& stream) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<ProducedStream> other = stream_.lock();
  if (other && other->is_wanted()) return false;
  stream_ = stream;
  was_open_ = true;
  opened_.notify_all();
  return true;
}

std::shared_ptr<ProducedStream> Producer::wait_for_stream() {
  std::unique_lock lock(mutex_);
  opened_.wait(lock, [&] { return was_open_; });
  return stream_.lock();
}

bool Producer::fill(const std::function<void(Row&)>& make) {
  const std::shared_ptr<ProducedStream> stream = wait_for_stream();
  return stream && stream->fill(make);
}

bool Producer::put(const Example& sample) {
  return fill([&](Row& row) { row.sample = sample; });
}

bool Producer::is_wanted() const {
  const std::unique_lock lock(mutex_);
  if (!was_open_) return true;
  const std::shared_ptr<ProducedStream> stream = stream_.lock();
  return stream && stream->is_wanted();
}

void Producer::close() {
  const std::lock_guard lock(mutex_);
  was_open_ = true;
  if (const std::shared_ptr<ProducedStream> stream = stream_.lock()) stream->close();
  opened_.notify_all();
}

ProducedSamples::ProducedSamples(ProducedOptions options)
    : options_(std::move(options)), producer_(std::make_shared<Producer>()) {
  const std::string who = text("producer '", options_.name, "'");
  require(!options_.like.input.empty() || !options_.like.target.empty(), who,
          " has to promise how a sample looks: .like has no field");
  require(options_.samples_per_epoch >= 1, who, ": an epoch has at least one sample, not ",
          options_.samples_per_epoch);
  require(options_.threads >= 0 && (options_.threads > 0) == (options_.produce != nullptr), who, " has ",
          options_.threads, " threads and ", options_.produce ? "a" : "no",
          " function for them: give both, or neither and call producer() from threads of your own");
}

ProducedSamples::~ProducedSamples() { producer_->close(); }

Producer& ProducedSamples::producer() const {
  require(options_.threads == 0, "producer '", options_.name,
          "' has threads, which are handed what they fill: no others may");
  return *producer_;
}

Example ProducedSamples::trial_batch(std::int64_t samples) const {
  const auto repeated = [&](const at::Tensor& tensor) {
    std::vector<std::int64_t> shape = {samples};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    return tensor.unsqueeze(0).expand(shape).contiguous();
  };
  return {options_.like.input.map(repeated), options_.like.target.map(repeated)};
}

std::unique_ptr<BatchStream> ProducedSamples::open(const StreamOptions& options) const {
  check_stream(options, size());
  auto stream = std::make_shared<ProducedStream>(options_, options);
  const std::shared_ptr<Producer> producer = options_.threads > 0 ? std::make_shared<Producer>() : producer_;
  require(producer->serve(stream), "producer '", options_.name,
          "' makes samples for another run at present, and its threads are the same for all: one at a time");
  return std::make_unique<OpenProducer>(options_, producer, std::move(stream));
}

}  // namespace trireme::data
