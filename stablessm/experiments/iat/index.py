"""Lists the experiments of IAT, in the order in which ``stablessm list`` shows them."""

from stablessm.experiments.iat.epochs import experiment as epochs
from stablessm.experiments.iat.families import experiment as families
from stablessm.experiments.iat.fig1 import experiment as fig1
from stablessm.experiments.iat.fig2 import experiment as fig2
from stablessm.experiments.iat.fig3 import experiment as fig3
from stablessm.experiments.iat.fig4 import experiment as fig4
from stablessm.experiments.iat.fig5 import experiment as fig5
from stablessm.experiments.iat.fig6 import experiment as fig6
from stablessm.experiments.iat.lemmas import experiment as lemmas

EXPERIMENTS = tuple(figure.EXPERIMENT for figure in (fig1, fig2, fig3, fig4, fig5, fig6, families, epochs, lemmas))
