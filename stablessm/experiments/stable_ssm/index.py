"""Lists the experiments of StableSSM, in the order in which ``stablessm list`` shows them."""

from stablessm.experiments.stable_ssm.appendix import experiment as appendix
from stablessm.experiments.stable_ssm.fig1 import experiment as fig1
from stablessm.experiments.stable_ssm.fig2 import experiment as fig2
from stablessm.experiments.stable_ssm.fig3 import experiment as fig3
from stablessm.experiments.stable_ssm.fig4 import experiment as fig4
from stablessm.experiments.stable_ssm.fig5 import experiment as fig5
from stablessm.experiments.stable_ssm.fig6 import experiment as fig6
from stablessm.experiments.stable_ssm.rates import experiment as rates
from stablessm.experiments.stable_ssm.table1 import experiment as table1
from stablessm.experiments.stable_ssm.table2 import experiment as table2
from stablessm.experiments.stable_ssm.table3 import experiment as table3
from stablessm.experiments.stable_ssm.table4 import experiment as table4
from stablessm.experiments.stable_ssm.table5 import experiment as table5
from stablessm.experiments.stable_ssm.table6 import experiment as table6

EXPERIMENTS = tuple(
    figure.EXPERIMENT
    for figure in (fig1, fig2, fig3, fig4, fig5, fig6, table1, table2, table3, table4, table5, table6, appendix, rates)
)
