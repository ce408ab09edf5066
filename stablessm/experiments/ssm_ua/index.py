"""Lists the experiments of SSM-UA, in the order in which ``stablessm list`` shows them."""

from stablessm.experiments.ssm_ua.conv import experiment as conv
from stablessm.experiments.ssm_ua.decay import experiment as decay
from stablessm.experiments.ssm_ua.depth import experiment as depth
from stablessm.experiments.ssm_ua.fig2 import experiment as fig2
from stablessm.experiments.ssm_ua.fig3 import experiment as fig3
from stablessm.experiments.ssm_ua.fig4 import experiment as fig4
from stablessm.experiments.ssm_ua.fig5 import experiment as fig5
from stablessm.experiments.ssm_ua.fig6 import experiment as fig6
from stablessm.experiments.ssm_ua.table1 import experiment as table1

EXPERIMENTS = tuple(figure.EXPERIMENT for figure in (conv, fig2, fig3, fig4, fig5, fig6, depth, decay, table1))
