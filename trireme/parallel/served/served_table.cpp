#include "trireme/parallel/served/internal/served_table.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

// Range of wire::Priority for chunks; 0 is reserved for the most urgent messages.
constexpr double kFirstPriority = 1, kLastPriority = 250;

at::Tensor as_tensor(float* values, const at::Tensor& like) {
  return at::from_blob(values, like.sizes(), at::TensorOptions(at::kFloat));
}

}  // namespace

ServedTable::ServedTable(ps::Client& client, ps::TableSpec spec, std::vector<std::string_view> states,
                         const std::vector<ServedParameter>& parameters)
    : client_(client), spec_(std::move(spec)), states_(std::move(states)), chunks_(spec_.num_chunks()) {
  values_.resize(spec_.num_elements);
  for (Chunk& chunk : chunks_) chunk.priority = static_cast<wire::Priority>(kLastPriority);
  const double levels = std::min(kLastPriority - kFirstPriority, static_cast<double>(chunks_.size()));
  std::size_t begin = 0;
  for (const auto& [name, parameter, place] : parameters) {
    const auto numel = static_cast<std::size_t>(parameter.numel());
    const std::size_t first = begin / spec_.chunk_elements;
    const std::size_t num = numel == 0 ? 0 : (begin + numel - 1) / spec_.chunk_elements - first + 1;
    const auto priority = static_cast<wire::Priority>(kFirstPriority + place * levels);
    for (std::size_t chunk = first; chunk < first + num; ++chunk) {
      ++chunks_[chunk].num_items;
      chunks_[chunk].priority = std::min(chunks_[chunk].priority, priority);
    }
    items_.push_back(
        {.name = name, .parameter = parameter, .begin = begin, .first_chunk = first, .num_chunks = num});
    begin += numel;
  }
  table_ = client_.open_table(spec_);
}

std::shared_ptr<std::vector<float>> ServedTable::free_buffer() {
  for (const auto& buffer : buffers_) {
    if (buffer.use_count() == 1) return buffer;
  }
  return buffers_.emplace_back(std::make_shared<std::vector<float>>(num_elements()));
}

void ServedTable::give(std::size_t i, double lr, std::deque<ps::Pending>& pushes) {
  Item& item = items_[i];
  require(!item.is_given, "the gradient of parameter ", item.name,
          " came a second time before its step ended, and the first has been pushed: a step was broken off "
          "by an error, resume from a checkpoint; or the parameter is used in two nested backward passes, "
          "which servers cannot add up");
  const at::Tensor& gradient = item.parameter.grad();
  require(gradient.defined(), "parameter ", item.name,
          " got no gradient in this step, and servers update whole tables: use it in every step, or set "
          "requires_grad to false");
  if (!gradients_) gradients_ = free_buffer();
  as_tensor(gradients_->data() + item.begin, item.parameter).copy_(gradient);
  item.is_given = true;
  const wire::Buffer all(gradients_, std::as_bytes(std::span(*gradients_)));
  for (std::size_t number = item.first_chunk; number < item.first_chunk + item.num_chunks; ++number) {
    Chunk& chunk = chunks_[number];
    if (++chunk.num_given < chunk.num_items) continue;
    pushes.push_back(client_.push_chunk(
        table_, number, all.part(begin_of(number) * sizeof(float), size_of(number) * sizeof(float)),
        {.lr = lr, .priority = chunk.priority}));
  }
}

void ServedTable::give_rest(double lr, std::deque<ps::Pending>& pushes) {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].is_given) give(i, lr, pushes);
  }
  forget_step();
}

bool ServedTable::is_amid_step() const { return std::ranges::any_of(items_, &Item::is_given); }

void ServedTable::forget_step() {
  for (Item& item : items_) item.is_given = false;
  for (Chunk& chunk : chunks_) chunk.num_given = 0;
  gradients_.reset();
}

void ServedTable::forget_left_out() {
  client_.with_node([this](ps::ClientNode& node) { node.forget_residuals(table_); });
}

void ServedTable::pull() {
  for (Item& item : items_) item.has_arrived = false;
  for (std::size_t number = 0; number < chunks_.size(); ++number) {
    Chunk& chunk = chunks_[number];
    while (chunk.pulling && !chunk.pulling->wait_for(1)) {
    }
    const std::span<float> out = std::span(values_).subspan(begin_of(number), size_of(number));
    chunk.pulling = client_.pull_chunk(table_, number, out, {.priority = chunk.priority});
  }
}

void ServedTable::wait_for_pull() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.pulling) chunk.pulling->get();
  }
}

bool ServedTable::has_arrived(std::size_t i) const {
  const Item& item = items_[i];
  const auto chunks = std::span(chunks_).subspan(item.first_chunk, item.num_chunks);
  return item.has_arrived || std::ranges::all_of(chunks, [](const Chunk& chunk) {
           return !chunk.pulling || chunk.pulling->is_done();
         });
}

std::optional<ps::WorkerClock> ServedTable::finish_pull(std::size_t i) {
  Item& item = items_[i];
  if (item.has_arrived) return std::nullopt;
  std::optional<ps::WorkerClock> lowest;
  for (std::size_t number = item.first_chunk; number < item.first_chunk + item.num_chunks; ++number) {
    Chunk& chunk = chunks_[number];
    if (!chunk.pulling) continue;
    const ps::WorkerClock clock = chunk.pulling->get().min_clock;
    lowest = std::min(lowest.value_or(clock), clock);
    chunk.pulling.reset();
  }
  item.parameter.copy_(as_tensor(values_.data() + item.begin, item.parameter));
  item.has_arrived = true;
  return lowest;
}

std::vector<float> ServedTable::values_of_parameters() const {
  std::vector<float> all(num_elements());
  for (const Item& item : items_) as_tensor(all.data() + item.begin, item.parameter).copy_(item.parameter);
  return all;
}

void ServedTable::assign() { client_.assign(table_, values_of_parameters()).get(); }

/// The state of that kind in the order of the servers' tables; zeros where this rank has none.
std::vector<float> ServedTable::state_row(const std::map<std::string, at::Tensor>& state,
                                          std::string_view kind) const {
  std::vector<float> row(num_elements());
  for (const Item& item : items_) {
    const auto found = state.find(text(kind, "/", item.name));
    if (found != state.end()) as_tensor(row.data() + item.begin, item.parameter).copy_(found->second);
  }
  return row;
}

void ServedTable::take_state_row(const std::map<std::string, at::Tensor>& state, std::string_view kind,
                                 std::vector<float>& row) const {
  for (const Item& item : items_) {
    const auto found = state.find(text(kind, "/", item.name));
    if (found != state.end())
      at::Tensor(found->second).copy_(as_tensor(row.data() + item.begin, item.parameter));
  }
}

void ServedTable::restore(const std::map<std::string, at::Tensor>& state) {
  std::vector<std::vector<float>> rows = {values_of_parameters()};
  for (const std::string_view kind : states_) rows.push_back(state_row(state, kind));
  const auto count_of = state.find(text("step/", items_.front().name));
  const auto num_updates =
      count_of == state.end() ? 0 : static_cast<std::uint64_t>(count_of->second.item<double>());
  std::deque<ps::Pending> under_way;
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const std::size_t bytes = size_of(chunk) * sizeof(float);
    std::vector<std::byte> all(rows.size() * bytes);
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(all.data() + i * bytes, rows[i].data() + begin_of(chunk), bytes);
    under_way.push_back(client_.restore_chunk(table_, chunk, wire::Buffer::of(std::move(all)), num_updates));
  }
  for (const ps::Pending& each : under_way) each.get();
}

void ServedTable::pull_state(const std::map<std::string, at::Tensor>& state) {
  std::vector<std::vector<float>> rows(1 + states_.size(), std::vector<float>(num_elements()));
  std::uint64_t num_updates = 0;
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const ps::Result pulled = client_.pull_state(table_, chunk).get();
    const std::size_t bytes = size_of(chunk) * sizeof(float);
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(rows[i].data() + begin_of(chunk), pulled.values.bytes().data() + i * bytes, bytes);
    num_updates = pulled.num_updates;
  }
  for (const Item& item : items_)
    item.parameter.copy_(as_tensor(rows.front().data() + item.begin, item.parameter));
  for (std::size_t i = 0; i < states_.size(); ++i) take_state_row(state, states_[i], rows[1 + i]);
  for (const Item& item : items_) {
    const auto found = state.find(text("step/", item.name));
    if (found != state.end()) at::Tensor(found->second).fill_(static_cast<double>(num_updates));
  }
}

}  // namespace trireme::parallel
