#include "trireme/telemetry/trace.h"

#include <unistd.h>

#include <new>

#include "trireme/base/error.h"

namespace trireme::telemetry {

TraceBuffer::~TraceBuffer() {
  for (Chunk* chunk = first_.load(); chunk != nullptr;) {
    Chunk* next = chunk->next.load();
    delete chunk;
    chunk = next;
  }
}

void TraceBuffer::add(const TraceSpan& span) {
  if (last_ == nullptr || last_->size.load(std::memory_order_relaxed) == kChunkSpans) {
    if (!trace_.take_chunk(kChunkSpans)) return;
    auto* fresh = new Chunk;
    (last_ == nullptr ? first_ : last_->next).store(fresh, std::memory_order_release);
    last_ = fresh;
  }
  const std::size_t size = last_->size.load(std::memory_order_relaxed);
  last_->spans[size] = span;
  last_->size.store(size + 1, std::memory_order_release);
}

void TraceBuffer::for_each(const std::function<void(const TraceSpan&)>& visit) const {
  for (const Chunk* chunk = first_.load(std::memory_order_acquire); chunk != nullptr;
       chunk = chunk->next.load(std::memory_order_acquire)) {
    const std::size_t size = chunk->size.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < size; ++i) visit(chunk->spans[i]);
  }
}

Trace::Trace(const TraceOptions& options) : options_(options) {
  require(options.first_step <= options.last_step, "a trace from step ", options.first_step, " to step ",
          options.last_step, " holds nothing");
  main_ = &add_thread("main");
}

TraceBuffer& Trace::add_thread(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return buffers_.emplace_back(*this, name, this_thread_number());
}

TraceBuffer& Trace::add_lanes(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return buffers_.emplace_back(*this, name, /*thread=*/0);
}

const char* Trace::intern(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return texts_.insert(text).first->c_str();
}

void Trace::begin_step(std::int64_t step) {
  recording_.store(step >= options_.first_step && step <= options_.last_step, std::memory_order_relaxed);
}

std::vector<const TraceBuffer*> Trace::buffers() const {
  const std::lock_guard lock(mutex_);
  std::vector<const TraceBuffer*> result;
  for (const TraceBuffer& buffer : buffers_) result.push_back(&buffer);
  return result;
}

bool Trace::take_chunk(std::size_t spans) {
  if (num_reserved_.fetch_add(spans, std::memory_order_relaxed) + spans <= options_.max_spans) return true;
  num_reserved_.fetch_sub(spans, std::memory_order_relaxed);
  num_dropped_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

int this_thread_number() { return ::gettid(); }

void TraceScope::begin(const char* category, const char* name, TraceArgument argument) {
  category_ = category;
  name_ = name;
  argument_ = argument;
  begin_ns_ = now_ns();
}

void TraceScope::end() {
  buffer_->add({.begin_ns = begin_ns_,
                .end_ns = now_ns(),
                .category = category_,
                .name = name_,
                .group = nullptr,
                .thread = buffer_->thread(),
                .arguments = {argument_}});
}

}  // namespace trireme::telemetry
