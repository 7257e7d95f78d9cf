#include "trireme/parallel/convolution_agreement.h"

#include <ATen/Parallel.h>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"
#include "trireme/model/convolution_measurement.h"

namespace trireme::parallel {

model::ConvolutionChoice measured_convolutions_here(const Log& log) {
  if (at::get_num_threads() != 1) return {};
  const double begin_s = now_s();
  const model::CachedChoice found = model::cached_convolutions(
      model::convolution_cache_folder(), model::convolution_conditions(), model::measure_convolutions);
  if (!found.measured_now) return found.choice;
  log.info("small convolutions: ", describe(found.choice), "; measured in ",
           human_duration(now_s() - begin_s),
           found.not_kept_because.empty() ? "" : "; not kept: ", found.not_kept_because);
  return found.choice;
}

model::ConvolutionChoice agreed(comm::Group& group, const model::ConvolutionChoice& mine) {
  return model::convolution_choice_from(group.all_gather_text(to_text(mine)).front());
}

model::ConvolutionChoice measured_convolutions(comm::Context& context) {
  return agreed(context.world(),
                context.is_main() ? measured_convolutions_here(context.log()) : model::ConvolutionChoice{});
}

}  // namespace trireme::parallel
