#include "trireme/parallel/pipeline/unread_loss.h"

#include <numeric>
#include <utility>

#include "trireme/parallel/data/exact_sum.h"

namespace trireme::parallel {

UnreadLoss::UnreadLoss(const at::Tensor& losses, std::vector<double> weights, bool exact)
    : losses_(losses), weights_(std::move(weights)), exact_(exact) {}

double UnreadLoss::read() const {
  const std::vector<double>& losses = losses_.read();
  std::vector<double> weighed;
  for (std::size_t i = 0; i < weights_.size(); ++i) weighed.push_back(weights_[i] * losses[i]);
  return exact_ ? exact_sum(std::move(weighed)) : std::accumulate(weighed.begin(), weighed.end(), 0.0);
}

}  // namespace trireme::parallel
