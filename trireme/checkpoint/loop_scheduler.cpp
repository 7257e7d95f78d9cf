#include "trireme/checkpoint/loop_scheduler.h"

#include <ATen/ops/scalar_tensor.h>

#include <cstdint>
#include <type_traits>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

/// A derived class may name protected members.
struct Counted : LRScheduler {
  static constexpr unsigned LRScheduler::*kSteps = &Counted::step_count_;
};

// The arguments of an explicit instantiation may name private members ([temp.spec]).
template <class Tag, auto kMember>
struct PrivateMember {
  friend constexpr auto member(Tag) { return kMember; }
};
struct PlateauBest {
  friend constexpr auto member(PlateauBest);
};
struct PlateauEpochs {
  friend constexpr auto member(PlateauEpochs);
};
struct PlateauBadEpochs {
  friend constexpr auto member(PlateauBadEpochs);
};
struct PlateauCooldown {
  friend constexpr auto member(PlateauCooldown);
};
template struct PrivateMember<PlateauBest, &Plateau::best>;
template struct PrivateMember<PlateauEpochs, &Plateau::last_epoch>;
template struct PrivateMember<PlateauBadEpochs, &Plateau::num_bad_epochs>;
template struct PrivateMember<PlateauCooldown, &Plateau::cooldown_counter>;

/// Calls `visit` with each name and number of a scheduler. It may change the number.
template <class Visit>
void each_number(LRScheduler& scheduler, const Visit& visit) {
  visit("steps", scheduler.*Counted::kSteps);
}
template <class Visit>
void each_number(Plateau& scheduler, const Visit& visit) {
  visit("best", scheduler.*member(PlateauBest()));
  visit("epochs", scheduler.*member(PlateauEpochs()));
  visit("bad_epochs", scheduler.*member(PlateauBadEpochs()));
  visit("cooldown", scheduler.*member(PlateauCooldown()));
}

template <class Number>
constexpr at::ScalarType type_of(Number) {
  return std::is_floating_point_v<Number> ? at::kDouble : at::kLong;
}

}  // namespace

TensorMap LoopScheduler::state() const {
  TensorMap state;
  std::visit(
      [&](auto* scheduler) {
        each_number(*scheduler, [&](const char* name, auto number) {
          using Stored = std::conditional_t<std::is_floating_point_v<decltype(number)>, double, std::int64_t>;
          state.emplace(name, at::scalar_tensor(static_cast<Stored>(number), type_of(number)));
        });
      },
      scheduler_);
  return state;
}

void LoopScheduler::check_fits(const TensorMap& state) const {
  for (const auto& [name, expected] : this->state()) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.scalar_type() != expected.scalar_type())
      throw DataError(
          text("the state of a learning-rate scheduler lacks '", name,
               "': it is another type's; restore it into a scheduler of the type that was saved"));
  }
}

void LoopScheduler::restore(const TensorMap& state) const {
  check_fits(state);
  std::visit(
      [&](auto* scheduler) {
        each_number(*scheduler, [&](const char* name, auto& number) {
          using Number = std::decay_t<decltype(number)>;
          using Stored = std::conditional_t<std::is_floating_point_v<Number>, double, std::int64_t>;
          number = static_cast<Number>(state.at(name).item<Stored>());
        });
      },
      scheduler_);
}

}  // namespace trireme::checkpoint
