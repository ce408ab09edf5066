"""Lists the experiments of LRU-UA, in the order in which ``stablessm list`` shows them."""

from stablessm.experiments.lru_ua.fig2 import experiment as fig2
from stablessm.experiments.lru_ua.fig3 import experiment as fig3
from stablessm.experiments.lru_ua.fig4 import experiment as fig4
from stablessm.experiments.lru_ua.fig5 import experiment as fig5
from stablessm.experiments.lru_ua.fig6 import experiment as fig6
from stablessm.experiments.lru_ua.fig7 import experiment as fig7
from stablessm.experiments.lru_ua.fig8 import experiment as fig8
from stablessm.experiments.lru_ua.fig9 import experiment as fig9
from stablessm.experiments.lru_ua.lemma8 import experiment as lemma8

EXPERIMENTS = tuple(figure.EXPERIMENT for figure in (fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, lemma8))
